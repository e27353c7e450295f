// SPDX-License-Identifier: Apache-2.0
//
// captured<cuda>: a whole training step as one CUDA graph.
//
//   first time under a key    runs as it is: scratch grows, libraries make their kernels ready
//   second time               the same launches are recorded and launched as a graph
//   from then on              the graph alone: one launch a step, whatever the model's depth
//
// The recorded work reads its inputs (batch, learning rate) from device memory that is filled
// before each replay. The launches are the same with and without a graph, and so are the bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "smelt/exec/captured.hpp"
#include "smelt/exec/cuda/policy.cuh"

namespace smelt {

template <class Compute>
class captured<cuda<Compute>> {
 public:
  captured() = default;
  captured(const captured&) = delete;
  captured& operator=(const captured&) = delete;
  ~captured() { forget(); }

  /// Runs body() or replays what it launched under the same key.
  template <class Body>
  void operator()(const cuda<Compute>& run, const std::vector<std::int64_t>& key, Body&& body) {
    if (!run.uses_graph()) {
      body();
      return;
    }
    if (!seen_ || key != key_) {
      forget();
      key_ = key;
      seen_ = true;
      body();
      return;
    }
    if (graph_ == nullptr) record(run, body);
    cuda_detail::check(cudaGraphLaunch(graph_, run.stream()), "cudaGraphLaunch");
  }

 private:
  template <class Body>
  void record(const cuda<Compute>& run, Body&& body) {
    // Relaxed: other threads of the program may allocate meanwhile; this work itself does not.
    cuda_detail::check(cudaStreamBeginCapture(run.stream(), cudaStreamCaptureModeRelaxed),
                       "cudaStreamBeginCapture");
    cudaGraph_t recorded = nullptr;
    try {
      body();
    } catch (...) {
      // An abandoned capture would make every later call on the stream fail.
      static_cast<void>(cudaStreamEndCapture(run.stream(), &recorded));
      if (recorded != nullptr) static_cast<void>(cudaGraphDestroy(recorded));
      throw;
    }
    cuda_detail::check(cudaStreamEndCapture(run.stream(), &recorded), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&graph_, recorded, 0);
    static_cast<void>(cudaGraphDestroy(recorded));
    cuda_detail::check(status, "cudaGraphInstantiate");
  }
  void forget() {
    if (graph_ != nullptr) static_cast<void>(cudaGraphExecDestroy(graph_));
    graph_ = nullptr;
    seen_ = false;
  }

  std::vector<std::int64_t> key_;
  bool seen_ = false;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace smelt
