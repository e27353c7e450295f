// SPDX-License-Identifier: Apache-2.0
//
// The two products that attention is made of, by one warp on bf16 tiles in shared memory:
//
//   scores      S [16 m, 8 n] += X [16 m, HeadSize] Y^T        Y [8 n, HeadSize] in shared memory
//   weighted    O [16 m, HeadSize] += P [16 m, 8 n] Y          P rounded to bf16 in registers
//
// S, P and O lie in the accumulator layout of tensor_core.cuh: thread (g, t) = (lane / 4, lane % 4)
// holds rows g and g + 8 of each 16, columns 2t and 2t + 1 of each 8.
// A tile's rows are HeadSize + 8 elements apart, an odd number of 16-byte pieces, so that neither
// copies nor fragments meet a bank conflict.
#pragma once

#include <cstdint>

#include "smelt/exec/bf16.hpp"
#include "smelt/kernel/attention_rows.cuh"
#include "smelt/kernel/tensor_core.cuh"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

/// Elements from one row of a tile in shared memory to the next.
template <int HeadSize>
inline constexpr int attention_stride = HeadSize + 8;

/// 2^x to about 2e-7 relative; -infinity gives zero, NaN stays NaN. bf16 keeps 4e-3 of it.
__device__ inline float attention_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Begins to copy rows [0, Rows) at `from`, HeadSize apart, into a tile; those from `valid` on
/// become zero and are not read: they may be another document's NaN.
template <int Rows, int HeadSize>
__device__ void attention_copy_tile(const bf16* from, int valid, bf16* to) {
  constexpr int pieces = HeadSize / 8;
  static_assert(Rows * pieces % attention_threads == 0,
                "smelt: every thread copies as many pieces");
#pragma unroll 2  // all of them would keep their addresses in registers that the products need
  for (int i = 0; i < Rows * pieces / attention_threads; ++i) {
    const int piece = i * attention_threads + static_cast<int>(threadIdx.x);
    const int row = piece / pieces;
    const int column = piece % pieces * 8;
    const bool inside = row < valid;
    copy_async_16(to + row * attention_stride<HeadSize> + column,
                  from + (inside ? row : 0) * HeadSize + column, inside ? 16 : 0);
  }
}

/// Columns [16 step, ..) of rows [0, 16) of a tile as the left operand of a product.
template <int HeadSize>
__device__ void attention_left(const bf16* tile, int step, std::uint32_t (&to)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrix_x4(to, tile + lane % 16 * attention_stride<HeadSize> + 16 * step + lane / 16 * 8);
}

/// scores += X Y^T. left(m, step, a) gives the fragment of X; each fragment of Y serves all m.
/// Unroll steps of 16 columns are written out: all of them where left() reads registers.
template <int HeadSize, int Unroll, int RowTiles, int Tiles, class Left>
__device__ void attention_scores(Left&& left, const bf16* right,
                                 float (&scores)[RowTiles][Tiles][4]) {
  static_assert(Tiles % 2 == 0, "smelt: scores are computed 16 columns at a time");
  constexpr int stride = attention_stride<HeadSize>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bf16* row = right + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
#pragma unroll Unroll
  for (int step = 0; step < HeadSize / 16; ++step) {
    std::uint32_t a[RowTiles][4];
#pragma unroll
    for (int m = 0; m < RowTiles; ++m) left(m, step, a[m]);
#pragma unroll
    for (int n = 0; n < Tiles; n += 2) {
      std::uint32_t both[4];
      load_matrix_x4(both, row + n * 8 * stride + 16 * step);
      const std::uint32_t first[2] = {both[0], both[1]}, second[2] = {both[2], both[3]};
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) {
        mma_16x8x16(scores[m][n], a[m], first);
        mma_16x8x16(scores[m][n + 1], a[m], second);
      }
    }
  }
}

/// sums += P Y. Two neighbouring tiles of P are the left operand as they lie.
template <int HeadSize, int RowTiles, int Tiles>
__device__ void attention_weighted(const float (&weights)[RowTiles][Tiles][4], const bf16* right,
                                   float (&sums)[RowTiles][HeadSize / 8][4]) {
  constexpr int stride = attention_stride<HeadSize>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bf16* row = right + lane % 16 * stride + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < Tiles; n += 2) {
    std::uint32_t a[RowTiles][4];
#pragma unroll
    for (int m = 0; m < RowTiles; ++m) {
      a[m][0] = pack_bf16(weights[m][n][0], weights[m][n][1]);
      a[m][1] = pack_bf16(weights[m][n][2], weights[m][n][3]);
      a[m][2] = pack_bf16(weights[m][n + 1][0], weights[m][n + 1][1]);
      a[m][3] = pack_bf16(weights[m][n + 1][2], weights[m][n + 1][3]);
    }
#pragma unroll
    for (int column = 0; column < HeadSize / 8; column += 2) {
      std::uint32_t both[4];
      load_matrix_x4_transposed(both, row + n * 8 * stride + column * 8);
      const std::uint32_t first[2] = {both[0], both[1]}, second[2] = {both[2], both[3]};
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) {
        mma_16x8x16(sums[m][column], a[m], first);
        mma_16x8x16(sums[m][column + 1], a[m], second);
      }
    }
  }
}

}  // namespace cuda_detail
}  // namespace cuda_backend
}  // namespace smelt
