// SPDX-License-Identifier: Apache-2.0
//
// for_each_element: how elementwise ops walk a view of rows, a thread an element, through Thrust.
//
//   body(row, column) for row in [0, rows), column in [0, columns)
//
// On par_nosync Thrust neither synchronises nor allocates, so a graph may capture it. Costs a
// division an element beside what the body moves. Limits: 2^63 elements.
#pragma once

#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <cstdint>
#include <limits>
#include <string>

#include "smelt/exec/cuda/launch.cuh"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

// Body(i) as body(row, column) of rows of `columns` elements. A 64-bit division takes about four
// times the instructions of a 32-bit one, which is exact for every view below 2^32 elements.
template <class Body>
struct element_of_rows {
  std::int64_t columns;
  bool short_division;
  Body body;

  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = short_division
                                 ? static_cast<std::int64_t>(static_cast<std::uint32_t>(i) /
                                                             static_cast<std::uint32_t>(columns))
                                 : i / columns;
    body(row, i - row * columns);
  }
};

// Runs a Thrust algorithm; what it throws becomes a smelt::error that names the op.
template <class Algorithm>
void run_thrust(const kernel_call& call, Algorithm&& algorithm) {
  try {
    algorithm();
  } catch (const thrust::system_error& failure) {
    throw error("CUDA: " + call.text() + ": " + failure.what());
  }
}

}  // namespace cuda_detail

/// body(row, column) for every element of [rows, columns], one thread each, on the policy's stream;
/// Body is a functor with a const __device__ operator. `call` is what a message calls it.
template <class Compute, class Body>
void for_each_element(const cuda<Compute>& run, const kernel_call& call, std::int64_t rows,
                      std::int64_t columns, const Body& body) {
  const std::int64_t count = rows * columns;
  if (count == 0) return;
  const bool short_division = count <= std::numeric_limits<std::uint32_t>::max();
  cuda_detail::run_thrust(call, [&] {
    thrust::for_each_n(thrust::cuda::par_nosync.on(run.stream()),
                       thrust::counting_iterator<std::int64_t>(0), count,
                       cuda_detail::element_of_rows<Body>{columns, short_division, body});
  });
}

}  // namespace cuda_backend
}  // namespace smelt
