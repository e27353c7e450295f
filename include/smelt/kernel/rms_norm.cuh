// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm on CUDA; formulas, shapes and the arithmetic of an element are those of op/rms_norm.hpp.
//
//   forward    a warp (narrow rows) or a block (wide ones) per row: sum of squares, then the row
//   backward   the same for dx. Rows are cut into at most `gain_parts` equal chunks, one block
//   each;
//              a block keeps the chunk's share of dgain in its own row of scratch, and a second
//              kernel adds the chunks up column by column: a fixed order, no atomics.
//
// Bytes in float: forward 8 an element (x once from memory, once from cache; y), backward 12, 16
// where it accumulates, and 8 columns gain_parts for dgain: bound by memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/op/rms_norm.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct rms_norm_tuning {
  static constexpr std::int64_t gain_parts = 256;  // chunks of rows, at most
};

template <int RowThreads, class Out>
__global__ void __launch_bounds__(row_block_threads)
    rms_norm_forward_kernel(matrix_view<const float> x, const float* gain, float epsilon,
                            matrix_view<Out> y, float* rstd) {
  __shared__ typename row_reduce<RowThreads>::storage shared;
  row_reduce<RowThreads> reduce(shared);
  const std::int64_t i = std::int64_t{blockIdx.x} * reduce.rows_per_block + reduce.row();
  const bool inside = i < x.rows;  // rows past the end take part in reductions only
  const float* from = x.row(inside ? i : 0);
  float squares = 0.0F;
  for (std::int64_t j = reduce.lane(); inside && j < x.columns; j += RowThreads)
    squares += from[j] * from[j];
  const float scale = rms_norm_scale(reduce.sum(squares), x.columns, epsilon);
  if (!inside) return;
  if (reduce.lane() == 0) rstd[i] = scale;
  // In place is allowed: a thread writes only what it alone reads.
  for (std::int64_t j = reduce.lane(); j < x.columns; j += RowThreads)
    y.row(i)[j] = static_cast<Out>(from[j] * scale * gain[j]);
}

// Rows [part * rows_per_part, ...) of the block's part; dgain of the part goes to parts[part].
template <int RowThreads>
__global__ void __launch_bounds__(row_block_threads)
    rms_norm_backward_kernel(matrix_view<const float> dy, matrix_view<const float> x,
                             const float* gain, const float* rstd, into mode, matrix_view<float> dx,
                             std::int64_t rows_per_part, float* parts) {
  __shared__ typename row_reduce<RowThreads>::storage shared;
  row_reduce<RowThreads> reduce(shared);
  constexpr int together = row_reduce<RowThreads>::rows_per_block;
  // Each row of threads has its own sums, so that nobody waits: parts [blocks * together, width].
  float* part = parts + (std::int64_t{blockIdx.x} * together + reduce.row()) * x.columns;
  for (std::int64_t j = reduce.lane(); j < x.columns; j += RowThreads) part[j] = 0.0F;
  const std::int64_t first = std::int64_t{blockIdx.x} * rows_per_part;
  for (std::int64_t step = 0; step < rows_per_part; step += together) {
    const std::int64_t i = first + step + reduce.row();
    const bool inside = step + reduce.row() < rows_per_part && i < x.rows;
    const float* gradient = dy.row(inside ? i : 0);
    const float* from = x.row(inside ? i : 0);
    float product = 0.0F;
    for (std::int64_t j = reduce.lane(); inside && j < x.columns; j += RowThreads)
      product += gradient[j] * gain[j] * from[j];
    product = reduce.sum(product);
    if (!inside) continue;
    const float scale = rstd[i];
    const float projection = rms_norm_projection(product, x.columns, scale);
    float* to = dx.row(i);
    for (std::int64_t j = reduce.lane(); j < x.columns; j += RowThreads) {
      // Both are read before dx is written: it may be dy.
      const float outer = gradient[j], value = from[j];
      part[j] += outer * value * scale;
      const float term = rms_norm_gradient(outer, value, gain[j], scale, projection);
      to[j] = mode == into::accumulate ? to[j] + term : term;
    }
  }
}

// dgain[j] += parts[0][j] + parts[1][j] + ..., in this order. A template, as every kernel of a
// header is: a plain one would be defined once in each file that includes it.
template <class Real>
__global__ void add_columns_kernel(const Real* parts, std::int64_t count, std::int64_t width,
                                   Real* to) {
  const std::int64_t j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= width) return;
  Real sum = 0;
  for (std::int64_t part = 0; part < count; ++part) sum += parts[part * width + j];
  to[j] += sum;
}

struct rms_norm_parts;

}  // namespace cuda_detail

/// As the host's: y = x rstd gain, and rstd. Out is float or the policy's compute type.
template <class Compute, class Out>
void rms_norm_forward(const cuda<Compute>& run, matrix_view<const float> x, const float* gain,
                      float epsilon, matrix_view<Out> y, float* rstd) {
  const auto start = [&](auto kernel, std::int64_t rows_per_block) {
    launch(run, {"rms_norm_forward", {x.rows, x.columns}},
           {blocks_for(x.rows, rows_per_block), row_block_threads}, kernel, x, gain, epsilon, y,
           rstd);
  };
  if (row_threads(x.columns) == 32)
    start(cuda_detail::rms_norm_forward_kernel<32, Out>, row_reduce<32>::rows_per_block);
  else
    start(cuda_detail::rms_norm_forward_kernel<row_block_threads, Out>, 1);
}

/// As the host's: dx overwritten or added to, dgain added to; dx may be dy in mode overwrite.
template <class Compute>
void rms_norm_backward(const cuda<Compute>& run, matrix_view<const float> dy,
                       matrix_view<const float> x, const float* gain, const float* rstd, into mode,
                       matrix_view<float> dx, float* dgain) {
  if (x.rows == 0) return;
  const bool narrow = row_threads(x.columns) == 32;
  const std::int64_t together = narrow ? row_reduce<32>::rows_per_block : 1;
  const std::int64_t rows_per_part = std::max<std::int64_t>(
      together, blocks_for(x.rows, cuda_detail::rms_norm_tuning::gain_parts));
  const std::int64_t blocks = blocks_for(x.rows, rows_per_part);
  float* parts =
      device_scratch<float, cuda_detail::rms_norm_parts>(run, blocks * together * x.columns);
  launch(run, {"rms_norm_backward", {x.rows, x.columns}}, {blocks, row_block_threads},
         narrow ? cuda_detail::rms_norm_backward_kernel<32>
                : cuda_detail::rms_norm_backward_kernel<row_block_threads>,
         dy, x, gain, rstd, mode, dx, rows_per_part, parts);
  launch(run, {"rms_norm_backward: dgain", {blocks * together, x.columns}},
         {blocks_for(x.columns, row_block_threads), row_block_threads},
         cuda_detail::add_columns_kernel<float>, parts, blocks * together, x.columns, dgain);
}

}  // namespace cuda_backend
}  // namespace smelt
