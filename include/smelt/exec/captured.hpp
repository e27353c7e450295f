// SPDX-License-Identifier: Apache-2.0
//
// captured: work that is the same every time, for a backend that can record it once and replay it.
//
// On the host it simply runs. CUDA records a graph (exec/cuda/graph.cuh) and launches the whole of
// it at once from then on.
#pragma once

#include <cstdint>
#include <vector>

namespace smelt {

template <class Policy>
class captured {
 public:
  /// Runs body(). `key` holds every size that the work depends on beside the memory it reads.
  template <class Body>
  void operator()(const Policy&, const std::vector<std::int64_t>&, Body&& body) {
    body();
  }
};

}  // namespace smelt
