// SPDX-License-Identifier: Apache-2.0
//
// The experts: SwiGLU feed-forward networks, each on the tokens that were routed to it.
//
//   for every slot s of expert e, token n = token_of[s], routing weight w = its weight:
//     [g, u] = x[n] gate_up[e]^T       x [N, H],  gate_up [E, 2f, H]: f gate rows, then f up rows
//     h      = silu(g) u               [f]
//     y[s]   = (w h) down[e]^T         down [E, H, f],  y [N top_k, H]
//
// The weight multiplies h before the last product, so combining the slots is a plain sum, and a
// weight's gradient is an inner product over f instead of over H:
//
//     dwh    = dout[n] down[e]         ddown[e]    += dout[n]^T (w h)
//     dw     = <dwh, h>,  dh = w dwh   dgate_up[e] += [dg, du]^T x[n]
//     dx[s]  = [dg, du] gate_up[e]     (dg, du from dh: see silu.hpp)
//
// Rows are gathered into tiles of at most expert_block_rows slots of one expert, so no copy of x in
// slot order exists, and what lies between two products stays in a tile, in the cache. An expert of
// more rows is cut, so that both its rows and its weights' gradients keep all threads busy.
// Floor: 6 H f FLOPs per slot forward, 12 backward; weights read once per block of rows.
// Source: paper sections 1 and 2 (gated experts, 3 H f E parameters).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/host_device.hpp"
#include "smelt/exec/matmul.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/lane_sum.hpp"
#include "smelt/op/silu.hpp"

namespace smelt {

/// Sizes of a layer's experts.
struct expert_ffn_shape {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  std::int64_t width = 0;

  SMELT_HD std::int64_t gate_up_size() const { return experts * 2 * width * hidden; }
  SMELT_HD std::int64_t down_size() const { return experts * hidden * width; }
};

inline namespace host_backend {

/// Slots of one expert that one thread takes through all products at a time.
inline constexpr std::int64_t expert_block_rows = 256;
/// Slots whose tiles are kept at once while experts of more than a block are worked on.
inline constexpr std::int64_t expert_wave_rows = 4096;

namespace host_detail {
struct expert_tasks;
struct expert_tiles;
struct expert_wave;

// Rows of a tile come in multiples of this; the ones past the slots are zero. Matrix hardware works
// on whole tiles anyway, and a product library can then keep a kernel for each of the few sizes.
template <class Compute>
inline constexpr std::int64_t expert_row_quantum = std::is_same_v<Compute, bf16> ? 32 : 1;

template <class Compute>
constexpr std::int64_t padded_rows(std::int64_t rows) {
  constexpr std::int64_t quantum = expert_row_quantum<Compute>;
  return (rows + quantum - 1) / quantum * quantum;
}

// Rows [begin, end) of one expert, in slots, and where their tile begins in a wave.
struct expert_rows {
  std::int64_t expert = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t wave_row = 0;

  std::int64_t rows() const { return end - begin; }
};

// The largest first: the last ones, which threads wait for, are then small.
inline void sort_by_rows(expert_rows* tasks, std::int64_t count) {
  std::sort(tasks, tasks + count, [](const expert_rows& a, const expert_rows& b) {
    return a.rows() != b.rows() ? a.rows() > b.rows() : a.begin < b.begin;
  });
}

// What the backward pass keeps of a range of slots between its products.
template <class Compute>
struct expert_tile {
  Compute* x = nullptr;         // [rows, H]
  Compute* dout = nullptr;      // [rows, H]
  Compute* dgate_up = nullptr;  // [rows, 2f]
  Compute* weighted = nullptr;  // [rows, f]

  expert_tile(const expert_ffn_shape& shape, std::int64_t rows, std::byte* memory) {
    const auto take = [&](std::int64_t columns) {
      auto* here = reinterpret_cast<Compute*>(memory);
      memory += aligned_bytes(rows * columns * static_cast<std::int64_t>(sizeof(Compute)));
      return here;
    };
    x = take(shape.hidden);
    dout = take(shape.hidden);
    dgate_up = take(2 * shape.width);
    weighted = take(shape.width);
  }
  static std::int64_t bytes(const expert_ffn_shape& shape, std::int64_t rows) {
    const auto size = static_cast<std::int64_t>(sizeof(Compute));
    return 2 * aligned_bytes(rows * shape.hidden * size) +
           aligned_bytes(rows * 2 * shape.width * size) + aligned_bytes(rows * shape.width * size);
  }
  // The same arrays from row `first` on.
  expert_tile from(const expert_ffn_shape& shape, std::int64_t first) const {
    expert_tile later = *this;
    later.x += first * shape.hidden;
    later.dout += first * shape.hidden;
    later.dgate_up += first * 2 * shape.width;
    later.weighted += first * shape.width;
    return later;
  }
};

// Rows [from, to) of a tile become zero.
template <class Compute>
void clear_rows(Compute* tile, std::int64_t columns, std::int64_t from, std::int64_t to) {
  std::fill(tile + from * columns, tile + to * columns, Compute{});
}

// One row, converted; apart from the other, as __restrict promises the vectoriser.
template <class To, class From>
void convert_row(const From* __restrict from, std::int64_t count, To* __restrict to) {
  for (std::int64_t j = 0; j < count; ++j) to[j] = static_cast<To>(from[j]);
}

// Rows of the slots' tokens, converted on the way; zeros up to whole tiles.
template <class Compute, class From>
void gather_rows(const dispatch_plan& plan, const expert_rows& rows,
                 const matrix_view<const From>& from, Compute* tile) {
  Compute* to = tile;
  for (std::int64_t slot = rows.begin; slot < rows.end; ++slot, to += from.columns) {
    const From* row = from.row(plan.token_of[slot]);
    if constexpr (std::is_same_v<Compute, From>)
      std::copy_n(row, from.columns, to);
    else
      convert_row(row, from.columns, to);
  }
  clear_rows(tile, from.columns, rows.rows(), padded_rows<Compute>(rows.rows()));
}

// C [rows, n] = A [padded rows, k] B in the compute type. Where that is narrower than the product's
// sums they are made in a tile, which has room for the padding, and rounded on their way out.
template <class Compute, class Real>
void product_by_tile(const Compute* a, const matrix_view<const Compute>& b, Real* tile,
                     const matrix_view<Compute>& c) {
  const std::int64_t padded = padded_rows<Compute>(c.rows);
  const matrix_view<const Compute> left(a, padded, b.rows);
  if constexpr (std::is_same_v<Compute, Real>) {
    product_serial(left, b, c);
  } else {
    product_serial(left, b, matrix_view<Real>(tile, padded, c.columns));
    for (std::int64_t row = 0; row < c.rows; ++row)
      convert_row(tile + row * c.columns, c.columns, c.row(row));
  }
}

}  // namespace host_detail

/// x [N, H] -> y_slots [N top_k, H], overwritten; combine_forward adds the slots up. Slots are of
/// the compute type: they are written to and read from cold memory, which bounds bf16.
///   weights [N, top_k]: routing weights         gate_up [E, 2f, H], down [E, H, f]
///   saved_gate_up [N top_k, 2f]: what the backward pass reads
template <class Compute>
void expert_ffn_forward(const host<Compute>& run, const expert_ffn_shape& shape,
                        matrix_view<const Compute> x, const dispatch_plan& plan,
                        const typename host<Compute>::real* weights, const Compute* gate_up,
                        const Compute* down, Compute* saved_gate_up, matrix_view<Compute> y_slots) {
  using Real = typename host<Compute>::real;
  const std::int64_t hidden = shape.hidden;
  const std::int64_t width = shape.width;
  run.count_product(plan.slots(), 3 * width, hidden);

  const std::int64_t most = shape.experts + plan.slots() / expert_block_rows;
  auto* tasks = thread_scratch<host_detail::expert_rows, host_detail::expert_tasks>(most);
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    for (std::int64_t s = plan.offsets[e]; s < plan.offsets[e + 1]; s += expert_block_rows)
      tasks[count++] = {e, s, std::min(s + expert_block_rows, plan.offsets[e + 1])};
  host_detail::sort_by_rows(tasks, count);

  layout places;
  const std::int64_t tile_rows =
      host_detail::padded_rows<Compute>(std::min(expert_block_rows, plan.slots()));
  const placement x_place = places.place<Compute>(tile_rows * hidden);
  const placement product_place = places.place<Real>(tile_rows * std::max(2 * width, hidden));
  const placement weighted_place = places.place<Compute>(tile_rows * width);
  const worker_scratch<std::byte, host_detail::expert_tiles> memory(run.threads(), places.bytes());

  for_each_block(run, count, 1, [&](std::int64_t index, std::int64_t) {
    const host_detail::expert_rows task = tasks[index];
    const std::int64_t padded = host_detail::padded_rows<Compute>(task.rows());
    std::byte* mine = memory.mine();
    auto* x_tile = reinterpret_cast<Compute*>(mine + x_place.offset_bytes);
    auto* product_tile = reinterpret_cast<Real*>(mine + product_place.offset_bytes);
    auto* weighted_tile = reinterpret_cast<Compute*>(mine + weighted_place.offset_bytes);

    host_detail::gather_rows(plan, task, x, x_tile);
    const matrix_view<const Compute> gate_up_e(gate_up + task.expert * 2 * width * hidden,
                                               2 * width, hidden);
    product_serial(matrix_view<const Compute>(x_tile, padded, hidden), transposed(gate_up_e),
                   matrix_view<Real>(product_tile, padded, 2 * width));
    for (std::int64_t slot = task.begin; slot < task.end; ++slot) {
      const std::int64_t row = slot - task.begin;
      swiglu_row(product_tile + row * 2 * width, width, weights[plan.assignment(slot)],
                 saved_gate_up + slot * 2 * width, weighted_tile + row * width);
    }
    host_detail::clear_rows(weighted_tile, width, task.rows(), padded);
    const matrix_view<const Compute> down_e(down + task.expert * hidden * width, hidden, width);
    host_detail::product_by_tile(weighted_tile, transposed(down_e), product_tile,
                                 y_slots.rows_between(task.begin, task.end));
  });
}

/// dout [N, H], the gradient of the combined output (its scale applied) ->
///   dgate_up [E, 2f, H] and ddown [E, H, f]: added to
///   dweights [N, top_k] and dx_slots [N top_k, H]: overwritten; combine_forward adds dx up
template <class Compute>
void expert_ffn_backward(const host<Compute>& run, const expert_ffn_shape& shape,
                         matrix_view<const Compute> x, const dispatch_plan& plan,
                         const typename host<Compute>::real* weights, const Compute* gate_up,
                         const Compute* down, const Compute* saved_gate_up,
                         matrix_view<const typename host<Compute>::real> dout,
                         typename host<Compute>::real* dgate_up,
                         typename host<Compute>::real* ddown,
                         typename host<Compute>::real* dweights, matrix_view<Compute> dx_slots) {
  using Real = typename host<Compute>::real;
  using tile = host_detail::expert_tile<Compute>;
  using host_detail::expert_rows;
  const std::int64_t hidden = shape.hidden;
  const std::int64_t width = shape.width;
  run.count_product(plan.slots(), 6 * width, hidden);

  // At most a block of rows, all but the weights' gradients; fills the tile.
  const auto rows_backward = [&](const expert_rows& rows, const tile& t, Real* product_tile) {
    const std::int64_t padded = host_detail::padded_rows<Compute>(rows.rows());
    host_detail::gather_rows(plan, rows, x, t.x);
    host_detail::gather_rows(plan, rows, dout, t.dout);
    const matrix_view<const Compute> down_e(down + rows.expert * hidden * width, hidden, width);
    product_serial(matrix_view<const Compute>(t.dout, padded, hidden), down_e,
                   matrix_view<Real>(product_tile, padded, width));
    for (std::int64_t slot = rows.begin; slot < rows.end; ++slot) {
      const std::int64_t row = slot - rows.begin;
      const std::int64_t assignment = plan.assignment(slot);
      dweights[assignment] = swiglu_row_backward(
          saved_gate_up + slot * 2 * width, product_tile + row * width, width, weights[assignment],
          t.dgate_up + row * 2 * width, t.weighted + row * width);
    }
    host_detail::clear_rows(t.dgate_up, 2 * width, rows.rows(), padded);
    host_detail::clear_rows(t.weighted, width, rows.rows(), padded);
    const matrix_view<const Compute> gate_up_e(gate_up + rows.expert * 2 * width * hidden,
                                               2 * width, hidden);
    host_detail::product_by_tile(t.dgate_up, gate_up_e, product_tile,
                                 dx_slots.rows_between(rows.begin, rows.end));
  };
  // Rows [first, last) of dgate_up [2f, H] or ddown [H, f] of one expert, from a filled tile, a
  // block of slots after the other.
  const auto gate_up_backward = [&](const expert_rows& rows, const tile& t, std::int64_t first,
                                    std::int64_t last) {
    const matrix_view<Real> to(dgate_up + rows.expert * 2 * width * hidden, 2 * width, hidden);
    for (std::int64_t begin = 0; begin < rows.rows(); begin += expert_block_rows) {
      const std::int64_t count =
          host_detail::padded_rows<Compute>(std::min(expert_block_rows, rows.rows() - begin));
      const tile block = t.from(shape, begin);
      const matrix_view<const Compute> left(block.dgate_up, count, 2 * width);
      product_serial(transposed(left.columns_between(first, last)),
                     matrix_view<const Compute>(block.x, count, hidden),
                     to.rows_between(first, last), into::accumulate);
    }
  };
  const auto down_backward = [&](const expert_rows& rows, const tile& t, std::int64_t first,
                                 std::int64_t last) {
    const matrix_view<Real> to(ddown + rows.expert * hidden * width, hidden, width);
    for (std::int64_t begin = 0; begin < rows.rows(); begin += expert_block_rows) {
      const std::int64_t count =
          host_detail::padded_rows<Compute>(std::min(expert_block_rows, rows.rows() - begin));
      const tile block = t.from(shape, begin);
      const matrix_view<const Compute> left(block.dout, count, hidden);
      product_serial(transposed(left.columns_between(first, last)),
                     matrix_view<const Compute>(block.weighted, count, width),
                     to.rows_between(first, last), into::accumulate);
    }
  };

  const std::int64_t tile_rows =
      host_detail::padded_rows<Compute>(std::min(expert_block_rows, plan.slots()));
  const std::int64_t tile_bytes = tile::bytes(shape, tile_rows);
  const std::int64_t thread_bytes =
      tile_bytes +
      aligned_bytes(tile_rows * std::max(width, hidden) * static_cast<std::int64_t>(sizeof(Real)));
  const worker_scratch<std::byte, host_detail::expert_tiles> memory(run.threads(), thread_bytes);

  // Experts of at most one block: rows and weights at once, everything stays in one thread's cache.
  // A wave ends inside at most two experts, so it has at most two blocks for each full one.
  const std::int64_t most = shape.experts + 2 * (expert_wave_rows / expert_block_rows) + 4;
  auto* tasks = thread_scratch<expert_rows, host_detail::expert_tasks>(2 * most);
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    if (plan.count(e) > 0 && plan.count(e) <= expert_block_rows)
      tasks[count++] = {e, plan.offsets[e], plan.offsets[e + 1]};
  host_detail::sort_by_rows(tasks, count);
  for_each_block(run, count, 1, [&](std::int64_t index, std::int64_t) {
    std::byte* mine = memory.mine();
    const tile t(shape, tile_rows, mine);
    rows_backward(tasks[index], t, reinterpret_cast<Real*>(mine + tile_bytes));
    gate_up_backward(tasks[index], t, 0, 2 * width);
    down_backward(tasks[index], t, 0, hidden);
  });

  // Larger experts, in waves of a bounded number of rows: first all rows in blocks, then the weight
  // gradients in panels, so that one expert that has everything keeps all threads busy. The memory
  // is asked for even if no expert is large, so that the first step fixes it.
  if (plan.slots() <= expert_block_rows) return;
  const std::int64_t wave_rows =
      host_detail::padded_rows<Compute>(std::min(expert_wave_rows, plan.slots()));
  const tile wave(
      shape, wave_rows,
      thread_scratch<std::byte, host_detail::expert_wave>(tile::bytes(shape, wave_rows)));
  expert_rows* parts = tasks + most;  // of one wave: rows of one expert each
  std::int64_t expert = 0;
  std::int64_t done = 0;  // rows of `expert` that earlier waves took
  while (expert < shape.experts) {
    std::int64_t filled = 0;
    std::int64_t part_count = 0;
    std::int64_t block_count = 0;
    while (expert < shape.experts && filled < wave_rows) {
      if (plan.count(expert) <= expert_block_rows) {
        ++expert;
        continue;
      }
      const std::int64_t begin = plan.offsets[expert] + done;
      const std::int64_t end = std::min(begin + wave_rows - filled, plan.offsets[expert + 1]);
      parts[part_count++] = {expert, begin, end, filled};
      for (std::int64_t s = begin; s < end; s += expert_block_rows)
        tasks[block_count++] = {expert, s, std::min(s + expert_block_rows, end),
                                filled + s - begin};
      filled += host_detail::padded_rows<Compute>(end - begin);
      done += end - begin;
      if (done == plan.count(expert)) {
        ++expert;
        done = 0;
      }
    }
    for_each_block(run, block_count, 1, [&](std::int64_t index, std::int64_t) {
      rows_backward(tasks[index], wave.from(shape, tasks[index].wave_row),
                    reinterpret_cast<Real*>(memory.mine() + tile_bytes));
    });
    constexpr std::int64_t panel = 128;
    const std::int64_t gate_up_panels = (2 * width + panel - 1) / panel;
    const std::int64_t panels = gate_up_panels + (hidden + panel - 1) / panel;
    for_each_block(run, part_count * panels, 1, [&](std::int64_t index, std::int64_t) {
      const expert_rows& part = parts[index / panels];
      const tile t = wave.from(shape, part.wave_row);
      const std::int64_t first = index % panels * panel;
      const std::int64_t down_first = first - gate_up_panels * panel;
      if (down_first < 0)
        gate_up_backward(part, t, first, std::min(first + panel, 2 * width));
      else
        down_backward(part, t, down_first, std::min(down_first + panel, hidden));
    });
  }
}

}  // namespace host_backend
}  // namespace smelt
