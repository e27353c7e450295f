// SPDX-License-Identifier: Apache-2.0
//
// Token embedding on CUDA; formulas and shapes are those of op/embed.hpp.
//
//   forward    a warp (narrow rows) or a block (wide ones) per token copies its row, four floats at
//   a
//              time where rows are aligned: 8 bytes an element, nothing to compute.
//   backward   tokens are sorted (stable, so that equal ones stay in order) and cut into windows of
//              32; a block adds up a window column by column. Runs of one token that end inside
//              their window are added to dweights; those that go on are kept, at most two rows a
//              window, and form a list of the same kind, 16 times shorter, that is summed the same
//              way until one window is left.
//
// So a token that is everywhere costs no more than any other, no two threads meet in one element,
// and every sum has a fixed order: no atomics. Bytes of backward: dx once, 4 N H; the rows of
// dweights that occur, read and written, 8 H each; at most N H / 2 for the lists; and 16 N for
// every 8 bits of a token in the sort: bound by memory. Limits: fewer than 2^31 tokens;
// column_stride 1.
#pragma once

#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/op/embed.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct embed_tuning {
  static constexpr int threads = 128;  // columns of a block
  static constexpr int window = 32;    // rows it adds up
  static constexpr int together = 8;   // loads in flight of a thread
};
static_assert(embed_tuning::window % embed_tuning::together == 0 && embed_tuning::window > 2,
              "smelt: a window is made of whole groups, and longer than the two rows it may leave");

// Element is a float or four of them: weights [V, H], x [N, H] in units of Element.
template <int RowThreads, class Element>
__global__ void __launch_bounds__(row_block_threads)
    embed_forward_kernel(const std::int32_t* tokens, matrix_view<const Element> weights,
                         matrix_view<Element> x) {
  using rows = row_reduce<RowThreads>;
  const std::int64_t n = std::int64_t{blockIdx.x} * rows::rows_per_block + rows::row();
  if (n >= x.rows) return;
  const Element* from = weights.row(tokens[n]);
#pragma unroll 4
  for (std::int64_t j = rows::lane(); j < x.columns; j += RowThreads) x.row(n)[j] = from[j];
}

// Rows to be added up by token: equal tokens side by side, -1 for a place that holds nothing.
template <class Real>
struct embed_list {
  const std::int32_t* token;  // [count]
  const std::int32_t* order;  // [count], the row of `rows` at each place; null: its own
  matrix_view<const Real> rows;
  std::int64_t count;
};

// What a list leaves behind: two places for each window.
template <class Real>
struct embed_rest {
  std::int32_t* token;
  matrix_view<Real> rows;
};

// to[i] = i: where each token stands before it is sorted.
template <class Index>
__global__ void count_up_kernel(Index* to, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = static_cast<Index>(i);
}

// A block per window and per `threads` columns; a thread owns one column of its window.
template <class Real>
__global__ void __launch_bounds__(embed_tuning::threads)
    embed_backward_kernel(embed_list<Real> list, unsigned column_blocks, embed_rest<Real> rest,
                          matrix_view<Real> dweights) {
  constexpr int together = embed_tuning::together;
  const std::int64_t window = blockIdx.x / column_blocks;
  const std::int64_t column =
      std::int64_t{blockIdx.x % column_blocks} * embed_tuning::threads + threadIdx.x;
  if (column >= dweights.columns) return;
  const std::int64_t begin = window * embed_tuning::window;
  const std::int64_t end =
      begin + embed_tuning::window < list.count ? begin + embed_tuning::window : list.count;

  // A run is a stretch of one token; where it reaches beyond the window, somebody else has the
  // rest.
  std::int32_t run = list.token[begin];
  Real sum = 0;
  bool from_before = begin > 0 && list.token[begin - 1] == run;
  const bool goes_on = end < list.count && list.token[end] == list.token[end - 1];
  std::int32_t kept[2] = {-1, -1};  // at the window's front and at its back
  Real kept_sum[2] = {0, 0};
  for (std::int64_t base = begin; base < end; base += together) {
    // All loads of a group before the first sum, so that they are in flight at the same time.
    std::int32_t token[together];
    Real value[together];
    for (int i = 0; i < together; ++i) {
      token[i] = base + i < end ? list.token[base + i] : -1;
      if (token[i] < 0) continue;
      const std::int64_t row = list.order == nullptr ? base + i : list.order[base + i];
      value[i] = list.rows.row(row)[column];
    }
    for (int i = 0; i < together && base + i < end; ++i) {
      if (token[i] != run) {  // a run ends inside the window
        if (run >= 0 && from_before) {
          kept[0] = run;
          kept_sum[0] = sum;
        } else if (run >= 0) {
          dweights.row(run)[column] += sum;
        }
        run = token[i];
        sum = 0;
        from_before = false;
      }
      if (token[i] >= 0) sum += value[i];
    }
  }
  // The last run; one that fills its window from before to after takes both places, the second
  // empty-handed, so that its places stay side by side.
  if (run >= 0) {
    if (from_before) {
      kept[0] = run;
      kept_sum[0] = sum;
      if (goes_on) kept[1] = run;
    } else if (goes_on) {
      kept[1] = run;
      kept_sum[1] = sum;
    } else {
      dweights.row(run)[column] += sum;
    }
  }
  if (list.count <= embed_tuning::window) return;  // one window: nothing goes on
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    if (column == 0) rest.token[2 * window + side] = kept[side];
    if (kept[side] >= 0) rest.rows.row(2 * window + side)[column] = kept_sum[side];
  }
}

// Whether every row may be read as vectors of four.
template <class T>
bool rows_are_aligned_to_four(const matrix_view<T>& view) {
  return view.columns % 4 == 0 && view.row_stride % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % sizeof(float4) == 0;
}

struct embed_sorted;
struct embed_sort_memory;
struct embed_rest_tokens;
struct embed_rest_rows;

}  // namespace cuda_detail

/// As the host's: x [N, H] is the tokens' rows of weights [V, H].
template <class Compute>
void embed_forward(const cuda<Compute>& run, const std::int32_t* tokens,
                   matrix_view<const float> weights, matrix_view<float> x) {
  const auto start = [&](auto kernel, std::int64_t rows_per_block, auto from, auto to) {
    launch(run, {"embed_forward", {x.rows, x.columns}},
           {x.columns == 0 ? 0 : blocks_for(x.rows, rows_per_block), row_block_threads}, kernel,
           tokens, from, to);
  };
  const auto by_width = [&]<class Element>(matrix_view<const Element> from,
                                           matrix_view<Element> to) {
    if (row_threads(to.columns) == 32)
      start(cuda_detail::embed_forward_kernel<32, Element>, row_reduce<32>::rows_per_block, from,
            to);
    else
      start(cuda_detail::embed_forward_kernel<row_block_threads, Element>, 1, from, to);
  };
  if (cuda_detail::rows_are_aligned_to_four(weights) && cuda_detail::rows_are_aligned_to_four(x))
    by_width(matrix_view<const float4>(reinterpret_cast<const float4*>(weights.data), weights.rows,
                                       weights.columns / 4, weights.row_stride / 4),
             matrix_view<float4>(reinterpret_cast<float4*>(x.data), x.rows, x.columns / 4,
                                 x.row_stride / 4));
  else
    by_width(weights, x);
}

/// As the host's: adds the rows of dx [N, H] to those of dweights [V, H]. Throws smelt::error for
/// 2^31 tokens or more.
template <class Compute>
void embed_backward(const cuda<Compute>& run, const std::int32_t* tokens,
                    matrix_view<const float> dx, matrix_view<float> dweights) {
  using tuning = cuda_detail::embed_tuning;
  const std::int64_t count = dx.rows;
  if (count == 0 || dx.columns == 0) return;
  if (count > std::numeric_limits<std::int32_t>::max())
    throw error("embed_backward: expected fewer than 2^31 tokens, found " + std::to_string(count) +
                "; cut the batch");

  // Places of equal tokens side by side; a stable sort by the bits that a token can have.
  auto* places = device_scratch<std::int32_t, cuda_detail::embed_sorted>(run, 3 * count);
  auto* order = places + count;
  auto* sorted = places + 2 * count;
  launch(run, {"embed_backward: places", {count}},
         {blocks_for(count, row_block_threads), row_block_threads},
         cuda_detail::count_up_kernel<std::int32_t>, places, count);
  const auto last_token = static_cast<std::uint64_t>(std::max<std::int64_t>(1, dweights.rows - 1));
  const int bits = static_cast<int>(std::bit_width(last_token));
  std::size_t bytes = 0;
  const auto sort = [&](void* memory) {
    cuda_detail::check(cub::DeviceRadixSort::SortPairs(memory, bytes, tokens, sorted, places, order,
                                                       count, 0, bits, run.stream()),
                       "embed_backward: sort of " + std::to_string(count) + " tokens");
  };
  sort(nullptr);  // asks for its bytes
  bytes = std::max<std::size_t>(bytes, 1);
  sort(device_scratch<std::byte, cuda_detail::embed_sort_memory>(run,
                                                                 static_cast<std::int64_t>(bytes)));

  // Every list leaves two places a window; they all lie behind each other.
  std::int64_t all_places = 0;
  for (std::int64_t rows = count; rows > tuning::window;) {
    rows = 2 * blocks_for(rows, tuning::window);
    all_places += rows;
  }
  auto* rest_tokens = device_scratch<std::int32_t, cuda_detail::embed_rest_tokens>(run, all_places);
  auto* rest_rows =
      device_scratch<float, cuda_detail::embed_rest_rows>(run, all_places * dx.columns);

  const std::int64_t column_blocks = blocks_for(dx.columns, tuning::threads);
  cuda_detail::embed_list<float> list{sorted, order, dx, count};
  while (true) {
    const std::int64_t windows = blocks_for(list.count, tuning::window);
    const cuda_detail::embed_rest<float> rest{rest_tokens, {rest_rows, 2 * windows, dx.columns}};
    launch(run, {"embed_backward", {list.count, dx.columns}},
           {windows * column_blocks, tuning::threads}, cuda_detail::embed_backward_kernel<float>,
           list, static_cast<unsigned>(column_blocks), rest, dweights);
    if (windows == 1) return;
    list = {rest_tokens, nullptr, rest.rows, 2 * windows};
    rest_tokens += 2 * windows;
    rest_rows += 2 * windows * dx.columns;
  }
}

}  // namespace cuda_backend
}  // namespace smelt
