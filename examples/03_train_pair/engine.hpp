// SPDX-License-Identifier: Apache-2.0
//
// engine: what trains the pair, on the CPU or on CUDA, behind an interface.
//
// A policy is a type, and CUDA's needs nvcc; the program around it needs neither. So each policy's
// code is compiled in a file of its own (engine_host.cpp, engine_cuda.cu), and the program holds a
// pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "smelt/train/step_report.hpp"

namespace pair {

/// One model in training.
class learner {
 public:
  virtual ~learner() = default;
  virtual smelt::step_report step(const smelt::batch_view& batch) = 0;
  virtual smelt::evaluation evaluate(const smelt::batch_view& batch) = 0;
};

/// A device with a precision.
class engine {
 public:
  virtual ~engine() = default;
  virtual std::unique_ptr<learner> baseline(const smelt::training_options& how,
                                            std::uint64_t seed) const = 0;
  virtual std::unique_ptr<learner> looped(const smelt::training_options& how,
                                          std::uint64_t seed) const = 0;
  /// FLOP/s of a product large enough to be limited by arithmetic alone.
  virtual double product_rate() const = 0;
  /// "2 threads, float32 products by oneDNN"
  virtual std::string description() const = 0;
};

/// On the CPU; precision is "float32" or "bf16", threads 0 means all.
std::unique_ptr<engine> host_engine(const std::string& precision, int threads);
/// Whether "auto" precision on the CPU means bf16.
bool host_prefers_bf16();

/// On the current CUDA device; throws smelt::error, in words, where there is none or where this
/// program was built without CUDA.
std::unique_ptr<engine> cuda_engine(const std::string& precision);

}  // namespace pair
