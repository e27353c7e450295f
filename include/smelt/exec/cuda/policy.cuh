// SPDX-License-Identifier: Apache-2.0
//
// The CUDA execution policy, first argument of every op as host{} is on the CPU.
//
//   cuda<>{}         float32 throughout, on a stream of its own
//   cuda<bf16>{}     products and attention on bf16 tensor cores with float32 sums
//   cuda<bf16>{s}    on the caller's stream s
//
// Copies of a policy share one stream, one cuBLAS handle and one set of scratch memory (see
// context.cuh); work is asynchronous and in order. Sums over a batch (loss, norms) are kept as
// float32 in device memory: `statistic`. Device code has no float64 instruction.
// FLOPs are counted where an op is launched: what a graph replays was counted when it was captured.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <type_traits>

#include "smelt/exec/bf16.hpp"
#include "smelt/exec/cuda/context.cuh"
#include "smelt/exec/flop_counter.hpp"
#include "smelt/exec/recomputation.hpp"

namespace smelt {
inline namespace cuda_backend {

template <class Compute = float>
class cuda : public flop_counting {
  static_assert(std::is_same_v<Compute, float> || std::is_same_v<Compute, bf16>,
                "smelt: cuda<Compute>: Compute is float or bf16; double is host<double>'s");

 public:
  using compute = Compute;
  using real = float;
  using statistic = float;

  /// Throws smelt::error where there is no device, or one below compute capability 8.0.
  explicit cuda(cudaStream_t stream = nullptr) : context_(std::make_shared<cuda_context>(stream)) {}

  cuda_context& context() const { return *context_; }
  cudaStream_t stream() const { return context_->stream(); }

  /// Waits until everything asked of this policy is done; throws what went wrong on the way.
  void synchronize() const {
    cuda_detail::check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }

  recomputation recompute() const { return recompute_; }
  void set_recompute(recomputation what) { recompute_ = what; }

  /// Whether a training step is recorded as a graph and replayed (graph.cuh); the bits are the
  /// same.
  bool uses_graph() const { return uses_graph_; }
  void set_graph(bool use) { uses_graph_ = use; }

 private:
  std::shared_ptr<cuda_context> context_;
  recomputation recompute_ = recomputation::none;
  bool uses_graph_ = true;
};

/// `count` elements of device memory that belong to Tag until the next request with it; grows on
/// first use, then stays.
template <class T, class Tag, class Compute>
T* device_scratch(const cuda<Compute>& run, std::int64_t count) {
  return reinterpret_cast<T*>(
      run.context().template scratch<Tag>(count * static_cast<std::int64_t>(sizeof(T))));
}

}  // namespace cuda_backend
}  // namespace smelt
