// SPDX-License-Identifier: Apache-2.0
//
// The residual stream on CUDA; formulas and shapes are those of op/residual.hpp.
//
//   residual_add   y = x + s u        12 bytes an element in float
//   scaled         out = s in         8 bytes an element in float, 6 to or from bf16
//
// Both are bound by memory: no FLOP to speak of. Views without gaps go through thrust::transform,
// which keeps as many bytes in flight as the chip needs; views of wider rows through
// for_each_element. On par_nosync neither synchronises nor allocates, so a graph may capture them.
// Limits: column_stride 1, as on the host.
#pragma once

#include <thrust/system/cuda/execution_policy.h>
#include <thrust/transform.h>

#include <cstdint>
#include <cuda/functional>

#include "smelt/exec/matrix.hpp"
#include "smelt/kernel/elementwise.cuh"
#include "smelt/op/residual.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

// The elements of both ops, and the same at a row and column.
struct add_scaled {
  float scale;
  __device__ float operator()(float x, float update) const {
    return residual_element(x, scale, update);
  }
};

template <class In, class Out>
struct scale_and_convert {
  float scale;
  __device__ Out operator()(In value) const { return scaled_element<Out>(value, scale); }
};

// A view of wider rows has no iterator of its own: these two are told where they are.
struct add_scaled_strided {
  matrix_view<const float> x;
  matrix_view<const float> update;
  matrix_view<float> y;
  add_scaled element;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    y.row(row)[column] = element(x.row(row)[column], update.row(row)[column]);
  }
};

template <class In, class Out>
struct scale_and_convert_strided {
  matrix_view<const In> in;
  matrix_view<Out> out;
  scale_and_convert<In, Out> element;
  __device__ void operator()(std::int64_t row, std::int64_t column) const {
    out.row(row)[column] = element(in.row(row)[column]);
  }
};

// Whether the rows lie behind each other without a gap, so that the view is one stretch of memory.
// One row always is.
template <class T>
bool is_gapless(const matrix_view<T>& view) {
  return view.row_stride == view.columns || view.rows <= 1;
}

}  // namespace cuda_detail

/// As the host's: y = x + scale * update; y may be x.
template <class Compute>
void residual_add(const cuda<Compute>& run, matrix_view<const float> x, float scale,
                  matrix_view<const float> update, matrix_view<float> y) {
  const kernel_call call{"residual_add", {x.rows, x.columns}};
  const cuda_detail::add_scaled element{scale};
  if (!cuda_detail::is_gapless(x) || !cuda_detail::is_gapless(update) ||
      !cuda_detail::is_gapless(y))
    return for_each_element(run, call, x.rows, x.columns,
                            cuda_detail::add_scaled_strided{x, update, y, element});
  cuda_detail::run_thrust(call, [&] {
    // The functor takes copies of its arguments, not their addresses, so CUB may stage them; y may
    // then still be x, but not overlap it in another way.
    thrust::transform(thrust::cuda::par_nosync.on(run.stream()), x.data, x.data + x.size(),
                      update.data, y.data, ::cuda::proclaim_copyable_arguments(element));
  });
}

/// As the host's: out = scale * in, converted to the element type of out.
template <class Compute, class In, class Out>
void scaled(const cuda<Compute>& run, matrix_view<const In> in, float scale, matrix_view<Out> out) {
  const kernel_call call{"scaled", {in.rows, in.columns}};
  const cuda_detail::scale_and_convert<In, Out> element{scale};
  if (!cuda_detail::is_gapless(in) || !cuda_detail::is_gapless(out))
    return for_each_element(run, call, in.rows, in.columns,
                            cuda_detail::scale_and_convert_strided<In, Out>{in, out, element});
  cuda_detail::run_thrust(call, [&] {
    thrust::transform(thrust::cuda::par_nosync.on(run.stream()), in.data, in.data + in.size(),
                      out.data, ::cuda::proclaim_copyable_arguments(element));
  });
}

}  // namespace cuda_backend
}  // namespace smelt
