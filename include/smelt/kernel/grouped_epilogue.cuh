// SPDX-License-Identifier: Apache-2.0
//
// Epilogues of grouped products: what becomes of a tile's sums, straight from the registers.
//
//   store_epilogue             C = sums                          rows of slots
//   accumulate_epilogue        C_e += sums                       a gradient of expert e, float
//   swiglu_epilogue            g, u = sums -> saved; w silu(g) u -> weighted
//   swiglu_backward_epilogue   dwh = sums -> dgate_up, weighted, and a part of <dwh, h> per slot
//
// The arithmetic of an element is that of op/silu.hpp. A thread writes runs of neighbouring columns
// at once where the result is aligned for that, and element by element otherwise; rows and columns
// past the result's end are never written. Every element has one writer, so the bits repeat.
#pragma once

#include <cstdint>
#include <type_traits>

#include "smelt/kernel/grouped_load.cuh"
#include "smelt/kernel/tensor_core.cuh"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/silu.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

/// One tile of one group's result.
struct grouped_tile {
  std::int64_t group = 0;
  index_range rows;     // from the tile's first row to the end of the group's rows
  index_range columns;  // likewise
  index_range inner;    // the sum's range
  std::int64_t column_tile = 0;
};

// What one store or load instruction moves.
template <class Element, int Count>
struct alignas(sizeof(Element) * Count) element_run {
  Element at[Count];
};

/// A result's memory: rows `row_stride` apart, groups `group_stride` apart (0: one for all), and
/// where a row has two halves, the second one `half_columns` columns after the first.
template <class Element>
struct grouped_result {
  Element* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;
  // Runs of this many columns, 1 to 8, that begin at a multiple of their length are aligned.
  int aligned_run = 1;

  grouped_result(Element* data_, std::int64_t row_stride_, std::int64_t group_stride_ = 0,
                 std::int64_t half_columns = 0)
      : data(data_), row_stride(row_stride_), group_stride(group_stride_) {
    const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data_));
    const auto size = static_cast<std::int64_t>(sizeof(Element));
    while (aligned_run < 8 && address % (2 * aligned_run * size) == 0 &&
           (row_stride_ | group_stride_ | half_columns) % (2 * aligned_run) == 0)
      aligned_run *= 2;
  }
  __device__ Element* row(std::int64_t group, std::int64_t index) const {
    return data + group * group_stride + index * row_stride;
  }
};

// The first `left` (any number) of a run of floats, to memory.
template <class Element, int Count>
__device__ void store_run(Element* to, const float (&values)[Count], std::int64_t left,
                          bool aligned) {
  if (aligned && left >= Count) {
    element_run<Element, Count> whole;
    if constexpr (std::is_same_v<Element, bf16> && Count == 2)
      whole = __builtin_bit_cast(element_run<Element, Count>, pack_bf16(values[0], values[1]));
    else
#pragma unroll
      for (int r = 0; r < Count; ++r) whole.at[r] = static_cast<Element>(values[r]);
    *reinterpret_cast<element_run<Element, Count>*>(to) = whole;
  } else {
#pragma unroll
    for (int r = 0; r < Count; ++r)
      if (r < left) to[r] = static_cast<Element>(values[r]);
  }
}

// The first `left` of a run, from memory; the others are 0.
template <class Element, int Count>
__device__ void load_run(const Element* from, float (&values)[Count], std::int64_t left,
                         bool aligned) {
  if (aligned && left >= Count) {
    const auto whole = *reinterpret_cast<const element_run<Element, Count>*>(from);
#pragma unroll
    for (int r = 0; r < Count; ++r) values[r] = static_cast<float>(whole.at[r]);
  } else {
#pragma unroll
    for (int r = 0; r < Count; ++r) values[r] = r < left ? static_cast<float>(from[r]) : 0.0F;
  }
}

// Run j of row i of a thread's sums.
template <class Multiplier>
__device__ void sums_of_run(const Multiplier& sums, int i, int j,
                            float (&values)[Multiplier::run]) {
#pragma unroll
  for (int r = 0; r < Multiplier::run; ++r) values[r] = sums.value(i, j, r);
}

/// C = sums, rounded to the element's type; C is [slots, columns].
template <class Element>
struct store_epilogue {
  static constexpr bool pairs = false;
  grouped_result<Element> to;

  template <class Multiplier>
  __device__ void operator()(const grouped_tile& tile, const Multiplier& sums) const {
    const bool aligned = to.aligned_run >= Multiplier::run;
#pragma unroll
    for (int i = 0; i < Multiplier::rows; ++i) {
      const std::int64_t row = tile.rows.first + sums.row(i);
      if (row >= tile.rows.end) continue;
      Element* here = to.row(tile.group, row);
#pragma unroll
      for (int j = 0; j < Multiplier::runs; ++j) {
        const std::int64_t column = tile.columns.first + sums.column(j);
        float values[Multiplier::run];
        sums_of_run(sums, i, j, values);
        store_run(here + column, values, tile.columns.end - column, aligned);
      }
    }
  }
};

/// C_e += sums: read and written once, by the one block that has the tile.
struct accumulate_epilogue {
  static constexpr bool pairs = false;
  grouped_result<float> to;

  template <class Multiplier>
  __device__ void operator()(const grouped_tile& tile, const Multiplier& sums) const {
    const bool aligned = to.aligned_run >= Multiplier::run;
#pragma unroll
    for (int i = 0; i < Multiplier::rows; ++i) {
      const std::int64_t row = tile.rows.first + sums.row(i);
      if (row >= tile.rows.end) continue;
      float* here = to.row(tile.group, row);
#pragma unroll
      for (int j = 0; j < Multiplier::runs; ++j) {
        const std::int64_t column = tile.columns.first + sums.column(j);
        const std::int64_t left = tile.columns.end - column;
        float values[Multiplier::run];
        load_run(here + column, values, left, aligned);
#pragma unroll
        for (int r = 0; r < Multiplier::run; ++r) values[r] += sums.value(i, j, r);
        store_run(here + column, values, left, aligned);
      }
    }
  }
};

/// Runs 2 p and 2 p + 1 of a row are g and u of the same columns of h: both are kept, rounded, and
/// w silu(g) u is made of them unrounded, as on the host.
template <class Compute>
struct swiglu_epilogue {
  static constexpr bool pairs = true;
  dispatch_plan plan;
  const float* weights;  // [N, top_k]
  std::int64_t width;
  grouped_result<Compute> saved;     // [slots, 2f]
  grouped_result<Compute> weighted;  // [slots, f]

  template <class Multiplier>
  __device__ void operator()(const grouped_tile& tile, const Multiplier& sums) const {
    constexpr int run = Multiplier::run;
    const bool aligned = weighted.aligned_run >= run;
    const bool saved_aligned = saved.aligned_run >= run;
#pragma unroll
    for (int i = 0; i < Multiplier::rows; ++i) {
      const std::int64_t slot = tile.rows.first + sums.row(i);
      if (slot >= tile.rows.end) continue;
      const float weight = weights[plan.assignment(slot)];
      Compute* saved_row = saved.row(0, slot);
      Compute* weighted_row = weighted.row(0, slot);
#pragma unroll
      for (int p = 0; p < Multiplier::runs / 2; ++p) {
        const std::int64_t column = tile.columns.first + sums.pair_column(p);
        const std::int64_t left = tile.columns.end - column;
        float gate[run], up[run], h[run];
        sums_of_run(sums, i, 2 * p, gate);
        sums_of_run(sums, i, 2 * p + 1, up);
#pragma unroll
        for (int r = 0; r < run; ++r) h[r] = weight * swiglu(gate[r], up[r]);
        store_run(saved_row + column, gate, left, saved_aligned);
        store_run(saved_row + width + column, up, left, saved_aligned);
        store_run(weighted_row + column, h, left, aligned);
      }
    }
  }
};

/// Sums are dwh, the gradient of w h. What a slot's weight gets, <dwh, h>, needs all columns, which
/// are other blocks': each leaves its part to a kernel that adds them up in order.
template <class Compute>
struct swiglu_backward_epilogue {
  static constexpr bool pairs = false;
  dispatch_plan plan;
  const float* weights;  // [N, top_k]
  std::int64_t width;
  grouped_result<const Compute> saved;  // [slots, 2f]
  grouped_result<Compute> dgate_up;     // [slots, 2f]
  grouped_result<Compute> weighted;     // [slots, f]
  float* parts;                         // [column tiles * column_parts, slots]

  template <class Multiplier>
  __device__ void operator()(const grouped_tile& tile, const Multiplier& sums) const {
    constexpr int run = Multiplier::run;
    const bool aligned = weighted.aligned_run >= run;
    const bool saved_aligned = saved.aligned_run >= run;
    const bool gradient_aligned = dgate_up.aligned_run >= run;
    float* part =
        parts + (tile.column_tile * Multiplier::column_parts + sums.column_part()) * plan.slots();
#pragma unroll
    for (int i = 0; i < Multiplier::rows; ++i) {
      // The lanes of a row add up together, so rows past the end go on with zeros.
      const std::int64_t slot = tile.rows.first + sums.row(i);
      const bool inside = slot < tile.rows.end;
      const std::int64_t row = inside ? slot : tile.rows.first;
      const float weight = weights[plan.assignment(row)];
      const Compute* saved_row = saved.row(0, row);
      Compute* gradient_row = dgate_up.row(0, row);
      Compute* weighted_row = weighted.row(0, row);
      float inner = 0.0F;
#pragma unroll
      for (int j = 0; j < Multiplier::runs; ++j) {
        const std::int64_t column = tile.columns.first + sums.column(j);
        const std::int64_t left = inside ? tile.columns.end - column : 0;
        float outer[run], gate[run], up[run], h[run];
        sums_of_run(sums, i, j, outer);
        load_run(saved_row + column, gate, left, saved_aligned);
        load_run(saved_row + width + column, up, left, saved_aligned);
#pragma unroll
        for (int r = 0; r < run; ++r) {
          const auto gradient = swiglu_backward(gate[r], up[r], weight * outer[r]);
          gate[r] = gradient.gate;
          up[r] = gradient.up;
          h[r] = weight * gradient.value;
          // Sums past the end are of zeros, but a NaN may have met them on the way.
          if (r < left) inner += outer[r] * gradient.value;
        }
        store_run(gradient_row + column, gate, left, gradient_aligned);
        store_run(gradient_row + width + column, up, left, gradient_aligned);
        store_run(weighted_row + column, h, left, aligned);
      }
#pragma unroll
      for (int apart = 1; apart < Multiplier::row_lanes; apart *= 2)
        inner += __shfl_xor_sync(0xffffffffU, inner, apart);
      if (inside && threadIdx.x % Multiplier::row_lanes == 0) part[slot] = inner;
    }
  }
};

}  // namespace cuda_detail

}  // namespace cuda_backend
}  // namespace smelt
