// SPDX-License-Identifier: Apache-2.0
//
// device_trainers: the trainers of --device cuda behind an interface, as nvcc compiles them in a
// file of their own (train_cuda.cu) and the rest of the program needs no nvcc.
#pragma once

#include <memory>
#include <string>

#include "ranks.hpp"
#include "request.hpp"
#include "smelt/train/run_model.hpp"

namespace smelt_tool {

class device_trainers {
 public:
  virtual ~device_trainers() = default;
  /// A trainer of the model that was asked for; there is one at a time.
  virtual std::unique_ptr<smelt::run_model> make(const smelt::training_options& options) = 0;
  /// FLOP/s of a large product on one device.
  virtual double product_rate() const = 0;
  /// "NVIDIA H100, bf16 products by cuBLAS"
  virtual std::string description() const = 0;
};

/// A device for this rank; every rank calls.
/// @throws smelt::error in words where there is no device, or where this program was built without
///         CUDA, or for several ranks without NCCL.
std::unique_ptr<device_trainers> trainers_on_cuda(ranks& all, const request& wanted);

}  // namespace smelt_tool
