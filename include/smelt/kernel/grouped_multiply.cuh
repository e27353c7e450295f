// SPDX-License-Identifier: Apache-2.0
//
// Tile multipliers of grouped products: what a block does with a pair of panels in shared memory.
//
//   sums [tile_rows, tile_columns] += A panel [tile_rows, inner] B panel [inner, tile_columns]
//
// A multiplier names its panels (grouped_load.cuh) and then answers where a thread's sums lie:
// rows row(i); in each row `runs` runs of `run` neighbouring columns from column(j) on. The lanes
// that share a row are `row_lanes` neighbours, and `column_parts` groups of them cover the columns.
// With B rows loaded in pairs, runs j and j + 1 (j even) are the two halves of the same columns:
// pair_column(j / 2). A multiplier for another instruction (wgmma) is one more class of this shape.
//
//   tensor_core_multiplier   bf16, 4 warps of 64 x 64, mma.sync m16n8k16: 32 products for 8
//                            ldmatrix.x4 each 16 inner indices. A and B are read from shared memory
//                            twice: 128 bytes a clock feed 1024 multiply-adds a clock, for 128 x
//                            128 x 32 256 clocks of reading (and 128 of filling) beside 512 of work
//   fma_multiplier           float, 64 x 128 by 128 threads of 8 x 8: true float32, no TF32; 256
//                            multiply-adds of a thread for 16 to 24 loads of 16 bytes
#pragma once

#include <cstdint>
#include <type_traits>

#include "smelt/exec/bf16.hpp"
#include "smelt/kernel/grouped_load.cuh"
#include "smelt/kernel/tensor_core.cuh"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

// Which column of h the column `at` of a tile of alternating gate and up columns is.
constexpr __host__ __device__ int unpaired(int at, int distance) {
  return at / (2 * distance) * distance + at % distance;
}

template <panel_order OrderA, panel_order OrderB>
class tensor_core_multiplier {
 public:
  using element = bf16;
  static constexpr int threads = 128;
  static constexpr int resident_blocks = 2;  // each with half the registers
  static constexpr int tile_rows = 128;
  static constexpr int tile_columns = 128;
  using panel_a = panel<bf16, tile_rows, OrderA>;
  using panel_b = panel<bf16, tile_columns, OrderB>;
  static constexpr int rows = 8;
  static constexpr int runs = 8;
  static constexpr int run = 2;  // d[0], d[1] and d[2], d[3] of a product
  static constexpr int row_lanes = 4;
  static constexpr int column_parts = 2;   // warps side by side
  static constexpr int pair_distance = 8;  // columns of a product: gate in one, up in the next

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) sums_[m][n][r] = 0.0F;
  }

  /// sums += A panel B panel
  __device__ void add(const bf16* a, const bf16* b) {
    constexpr int steps = panel_a::inner / 16;
    // Two sets of fragments: the next ones are on their way while these are multiplied.
    std::uint32_t left[2][4][4], right[2][4][4];
    load(a, b, 0, left[0], right[0]);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) load(a, b, step + 1, left[(step + 1) % 2], right[(step + 1) % 2]);
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const std::uint32_t(&pair)[4] = right[step % 2][n / 2];
          const std::uint32_t half[2] = {pair[n % 2 * 2], pair[n % 2 * 2 + 1]};
          mma_16x8x16(sums_[m][n], left[step % 2][m], half);
        }
    }
  }

  static __device__ int row(int i) {
    return warp() / 2 * 64 + i / 2 * 16 + i % 2 * 8 + lane() / 4;
  }
  static __device__ int column(int j) {
    return warp() % 2 * 64 + j * 8 + lane() % 4 * 2;
  }
  static __device__ int pair_column(int p) {
    return unpaired(column(2 * p), pair_distance);
  }
  static __device__ int column_part() {
    return warp() % 2;
  }
  __device__ float value(int i, int j, int r) const {
    return sums_[i / 2][j][i % 2 * 2 + r];
  }

 private:
  static __device__ int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }
  static __device__ int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }

  // Four 8 x 8 matrices of 16 outer and 16 inner indices; the halves say which of them this lane
  // gives an address of.
  template <class Panel>
  static __device__ void load(const bf16* from, int outer, int inner, int outer_half,
                              int inner_half, std::uint32_t (&to)[4]) {
    const int at = lane() % 8;
    if constexpr (Panel::order == panel_order::inner)
      load_matrix_x4(to, from + Panel::offset(outer + 8 * outer_half + at, inner / 8 + inner_half));
    else
      load_matrix_x4_transposed(
          to, from + Panel::offset(inner + 8 * inner_half + at, outer / 8 + outer_half));
  }
  static __device__ void load(const bf16* a, const bf16* b, int step, std::uint32_t (&left)[4][4],
                              std::uint32_t (&right)[4][4]) {
    // In a fragment of A the outer halves come first, in one of B the inner ones (tensor_core.cuh).
    const int odd = lane() / 8 % 2, high = lane() / 16;
#pragma unroll
    for (int m = 0; m < 4; ++m)
      load<panel_a>(a, warp() / 2 * 64 + 16 * m, 16 * step, odd, high, left[m]);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      load<panel_b>(b, warp() % 2 * 64 + 16 * n, 16 * step, high, odd, right[n]);
  }

  float sums_[4][8][4];  // [16 rows of the warp][8 columns][d of a product]
};

template <panel_order OrderA, panel_order OrderB>
class fma_multiplier {
 public:
  using element = float;
  static constexpr int threads = 128;
  static constexpr int resident_blocks = 2;  // at least: a bound of three would spill
  static constexpr int tile_rows = 64;
  static constexpr int tile_columns = 128;
  using panel_a = panel<float, tile_rows, OrderA>;
  using panel_b = panel<float, tile_columns, OrderB>;
  static constexpr int rows = 8;
  static constexpr int run = OrderB == panel_order::inner ? 1 : 4;  // a chunk of columns
  static constexpr int runs = 8 / run;
  static constexpr int row_lanes = 16;
  static constexpr int column_parts = 1;
  static constexpr int pair_distance = 16;  // threads side by side

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums_[i][j] = 0.0F;
  }

  /// sums += A panel B panel
  __device__ void add(const float* a, const float* b) {
#pragma unroll 1
    for (int inner = 0; inner < panel_a::inner; inner += 4) {
      // In steps of 4 x 4 x 4; the compiler keeps as much of the operands as there is room for.
#pragma unroll
      for (int columns = 0; columns < 8; columns += 4) {
        float right[4][4];
        load<panel_b>(
            b, columns, inner, [](int j) { return column_of(j); }, right);
#pragma unroll
        for (int rows_from = 0; rows_from < 8; rows_from += 4) {
          float left[4][4];
          load<panel_a>(
              a, rows_from, inner, [](int i) { return row(i); }, left);
#pragma unroll
          for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
              for (int j = 0; j < 4; ++j)
                sums_[rows_from + i][columns + j] += left[i][k] * right[j][k];
        }
      }
    }
  }

  // In inner order neighbouring threads take neighbouring rows, in outer order four neighbours.
  static __device__ int row(int i) {
    const int y = static_cast<int>(threadIdx.x) / 16;
    return OrderA == panel_order::inner ? y + 8 * i : y * 4 + 32 * (i / 4) + i % 4;
  }
  static __device__ int column(int j) {
    return column_of(j * run);
  }
  static __device__ int pair_column(int p) {
    return unpaired(column(2 * p), pair_distance);
  }
  static __device__ int column_part() {
    return 0;
  }
  __device__ float value(int i, int j, int r) const {
    return sums_[i][j * run + r];
  }

 private:
  static __device__ int column_of(int j) {
    const int x = static_cast<int>(threadIdx.x) % 16;
    return OrderB == panel_order::inner ? x + 16 * j : x * 4 + 64 * (j / 4) + j % 4;
  }
  // Elements [outer][inner] of four outer indices, those of from, from + 1, ..., and four inner
  // ones.
  template <class Panel, class Place>
  static __device__ void load(const float* panel, int from, int inner, Place place,
                              float (&to)[4][4]) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      const int at = Panel::order == panel_order::inner ? Panel::offset(place(from + l), inner / 4)
                                                        : Panel::offset(inner + l, place(from) / 4);
      const float4 four = *reinterpret_cast<const float4*>(panel + at);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int m = 0; m < 4; ++m)
        (Panel::order == panel_order::inner ? to[l][m] : to[m][l]) = values[m];
    }
  }

  float sums_[8][8];  // [row][column]
};

/// The multiplier of a compute type: the one place that another one is chosen at.
template <class Compute, panel_order OrderA, panel_order OrderB>
using grouped_multiplier =
    std::conditional_t<std::is_same_v<Compute, bf16>, tensor_core_multiplier<OrderA, OrderB>,
                       fma_multiplier<OrderA, OrderB>>;

}  // namespace cuda_detail

}  // namespace cuda_backend
}  // namespace smelt
