// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding on CUDA, in place; formulas, shapes and the rotation of a pair are
// those of op/rope.hpp.
//
// A warp (narrow rows) or a block (wide ones) per token; a thread takes pairs: columns i and i +
// d/2 of a head, so that neighbours in a warp read neighbours in memory. Bytes: 16 a pair of x,
// read and written once; the token's row of each table, 2 d bytes, is read by every head, but from
// memory by the first alone. 6 FLOPs a pair: bound by memory. Limits: rows narrower than 2^32
// elements.
#pragma once

#include <cstdint>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/op/rope.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

// x [tokens, heads * 2 head_pairs], positions [tokens], tables [max_positions, head_pairs].
template <int RowThreads, class Real>
__global__ void __launch_bounds__(row_block_threads)
    rope_rotate_kernel(matrix_view<Real> x, std::uint32_t head_pairs, const std::int32_t* positions,
                       const Real* cosines, const Real* sines, Real sign) {
  using rows = row_reduce<RowThreads>;
  const std::int64_t token = std::int64_t{blockIdx.x} * rows::rows_per_block + rows::row();
  if (token >= x.rows) return;
  const std::int64_t table = std::int64_t{positions[token]} * head_pairs;
  const auto pairs = static_cast<std::uint32_t>(x.columns / 2);
  for (auto p = static_cast<std::uint32_t>(rows::lane()); p < pairs; p += RowThreads) {
    const std::uint32_t head = p / head_pairs;
    const std::uint32_t i = p - head * head_pairs;
    Real* first =
        x.row(token) + std::int64_t{head} * 2 * head_pairs + i;  // [d] of the head, from i
    const rope_pair<Real> pair =
        rope_rotated(first[0], first[head_pairs], cosines[table + i], sign * sines[table + i]);
    first[0] = pair.first;
    first[head_pairs] = pair.second;
  }
}

}  // namespace cuda_detail

/// As the host's: rotates every head of every row of x. Throws for a head size that is odd or does
/// not divide the width; positions and tables are device memory, and not looked into here.
template <class Compute>
void rope_rotate(const cuda<Compute>& run, matrix_view<float> x, std::int64_t head_dim,
                 const std::int32_t* positions, const float* cosines, const float* sines,
                 rope_direction direction) {
  detail::check_rope(x.columns, x.column_stride, head_dim);
  const float sign = direction == rope_direction::forward ? 1.0F : -1.0F;
  const auto start = [&](auto kernel, std::int64_t rows_per_block) {
    launch(run, {"rope_rotate", {x.rows, x.columns, head_dim}},
           {blocks_for(x.rows, rows_per_block), row_block_threads}, kernel, x,
           static_cast<std::uint32_t>(head_dim / 2), positions, cosines, sines, sign);
  };
  // Half as many pairs as columns: the width that decides is the pairs'.
  if (row_threads(x.columns / 2) == 32)
    start(cuda_detail::rope_rotate_kernel<32, float>, row_reduce<32>::rows_per_block);
  else
    start(cuda_detail::rope_rotate_kernel<row_block_threads, float>, 1);
}

}  // namespace cuda_backend
}  // namespace smelt
