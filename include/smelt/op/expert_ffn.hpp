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
#include <cstdint>

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

/// One slot forward: gate and up of the first product become what is saved and what is multiplied.
/// gate_up [2 width], saved [2 width], weighted [width].
template <class Compute, class Real>
SMELT_HD void expert_activation_row(const Real* gate_up, std::int64_t width, Real weight,
                                    Compute* saved, Compute* weighted) {
  for (std::int64_t j = 0; j < width; ++j) {
    const Real gate = gate_up[j];
    const Real up = gate_up[width + j];
    saved[j] = static_cast<Compute>(gate);
    saved[width + j] = static_cast<Compute>(up);
    weighted[j] = static_cast<Compute>(weight * swiglu(gate, up));
  }
}

/// One slot backward: dweighted [width] is the gradient of weight * h. Writes dgate_up [2 width]
/// and weighted [width] again, and returns the gradient of the routing weight.
template <class Compute, class Real>
SMELT_HD Real expert_activation_backward_row(const Compute* saved, const Real* dweighted,
                                             std::int64_t width, Real weight, Compute* dgate_up,
                                             Compute* weighted) {
  return lane_sum<Real>(width, [&](std::int64_t j) {
    const auto gradient = swiglu_backward(
        static_cast<Real>(saved[j]), static_cast<Real>(saved[width + j]), weight * dweighted[j]);
    dgate_up[j] = static_cast<Compute>(gradient.gate);
    dgate_up[width + j] = static_cast<Compute>(gradient.up);
    weighted[j] = static_cast<Compute>(weight * gradient.value);
    return dweighted[j] * gradient.value;
  });
}

inline namespace host_backend {

/// Slots of one expert that one thread takes through all products at a time.
inline constexpr std::int64_t expert_block_rows = 256;
/// Slots whose tiles are kept at once while experts of more than a block are worked on.
inline constexpr std::int64_t expert_wave_rows = 4096;

namespace host_detail {
struct expert_tasks;
struct expert_tiles;
struct expert_wave;

// Rows [begin, end) of one expert, in slots.
struct expert_rows {
  std::int64_t expert = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t rows() const { return end - begin; }
};

// A thread's own part of memory that the calling thread owns. Asking each thread for its own would
// allocate whenever a thread gets its first task, which may be in any step.
inline int worker(int threads) {
#if defined(_OPENMP)
  const int index = omp_get_thread_num();
  return index < threads ? index : 0;  // a serial loop inside somebody else's parallel region
#else
  return 0 * threads;
#endif
}

// What the backward pass keeps of a range of slots between its products.
template <class Compute>
struct expert_tile {
  Compute* x = nullptr;         // [rows, H]
  Compute* dout = nullptr;      // [rows, H]
  Compute* dgate_up = nullptr;  // [rows, 2f]
  Compute* weighted = nullptr;  // [rows, f]

  static layout place(const expert_ffn_shape& shape, std::int64_t rows, placement (&where)[4]) {
    layout places;
    where[0] = places.place<Compute>(rows * shape.hidden);
    where[1] = places.place<Compute>(rows * shape.hidden);
    where[2] = places.place<Compute>(rows * 2 * shape.width);
    where[3] = places.place<Compute>(rows * shape.width);
    return places;
  }
  static std::int64_t bytes(const expert_ffn_shape& shape, std::int64_t rows) {
    placement where[4];
    return place(shape, rows, where).bytes();
  }
  expert_tile(const expert_ffn_shape& shape, std::int64_t rows, std::byte* memory) {
    placement where[4];
    place(shape, rows, where);
    x = reinterpret_cast<Compute*>(memory + where[0].offset_bytes);
    dout = reinterpret_cast<Compute*>(memory + where[1].offset_bytes);
    dgate_up = reinterpret_cast<Compute*>(memory + where[2].offset_bytes);
    weighted = reinterpret_cast<Compute*>(memory + where[3].offset_bytes);
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

// Rows of the slots' tokens, converted on the way.
template <class To, class From>
void gather_rows(const dispatch_plan& plan, std::int64_t begin, std::int64_t end,
                 const matrix_view<const From>& from, To* to) {
  for (std::int64_t slot = begin; slot < end; ++slot, to += from.columns) {
    const From* row = from.row(plan.token_of[slot]);
    for (std::int64_t j = 0; j < from.columns; ++j) to[j] = static_cast<To>(row[j]);
  }
}

}  // namespace host_detail

/// x [N, H] -> y_slots [N top_k, H], overwritten; combine_forward adds the slots up.
///   weights [N, top_k]: routing weights         gate_up [E, 2f, H], down [E, H, f]
///   saved_gate_up [N top_k, 2f]: what the backward pass reads
template <class Compute>
void expert_ffn_forward(const host<Compute>& run, const expert_ffn_shape& shape,
                        matrix_view<const Compute> x, const dispatch_plan& plan,
                        const typename host<Compute>::real* weights, const Compute* gate_up,
                        const Compute* down, Compute* saved_gate_up,
                        matrix_view<typename host<Compute>::real> y_slots) {
  using Real = typename host<Compute>::real;
  const std::int64_t hidden = shape.hidden;
  const std::int64_t width = shape.width;
  run.count_product(plan.slots(), 3 * width, hidden);

  // Blocks of rows, the largest first: the last ones, which threads wait for, are then small.
  const std::int64_t most = shape.experts + plan.slots() / expert_block_rows;
  auto* tasks = thread_scratch<host_detail::expert_rows, host_detail::expert_tasks>(most);
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    for (std::int64_t s = plan.offsets[e]; s < plan.offsets[e + 1]; s += expert_block_rows)
      tasks[count++] = {e, s, std::min(s + expert_block_rows, plan.offsets[e + 1])};
  std::sort(tasks, tasks + count,
            [](const host_detail::expert_rows& a, const host_detail::expert_rows& b) {
              return a.rows() != b.rows() ? a.rows() > b.rows() : a.begin < b.begin;
            });

  layout places;
  const std::int64_t tile_rows = std::min(expert_block_rows, plan.slots());
  const placement x_place = places.place<Compute>(tile_rows * hidden);
  const placement product_place = places.place<Real>(tile_rows * 2 * width);
  const placement weighted_place = places.place<Compute>(tile_rows * width);
  std::byte* memory =
      thread_scratch<std::byte, host_detail::expert_tiles>(run.threads() * places.bytes());

  for_each_block(run, count, 1, [&](std::int64_t index, std::int64_t) {
    const host_detail::expert_rows task = tasks[index];
    std::byte* mine = memory + host_detail::worker(run.threads()) * places.bytes();
    auto* x_tile = reinterpret_cast<Compute*>(mine + x_place.offset_bytes);
    auto* product_tile = reinterpret_cast<Real*>(mine + product_place.offset_bytes);
    auto* weighted_tile = reinterpret_cast<Compute*>(mine + weighted_place.offset_bytes);

    host_detail::gather_rows(plan, task.begin, task.end, x, x_tile);
    const matrix_view<const Compute> gate_up_e(gate_up + task.expert * 2 * width * hidden,
                                               2 * width, hidden);
    product_serial(matrix_view<const Compute>(x_tile, task.rows(), hidden), transposed(gate_up_e),
                   matrix_view<Real>(product_tile, task.rows(), 2 * width));
    for (std::int64_t slot = task.begin; slot < task.end; ++slot) {
      const std::int64_t row = slot - task.begin;
      expert_activation_row(product_tile + row * 2 * width, width, weights[plan.assignment(slot)],
                            saved_gate_up + slot * 2 * width, weighted_tile + row * width);
    }
    const matrix_view<const Compute> down_e(down + task.expert * hidden * width, hidden, width);
    product_serial(matrix_view<const Compute>(weighted_tile, task.rows(), width),
                   transposed(down_e), y_slots.rows_between(task.begin, task.end));
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
                         typename host<Compute>::real* dweights,
                         matrix_view<typename host<Compute>::real> dx_slots) {
  using Real = typename host<Compute>::real;
  using tile = host_detail::expert_tile<Compute>;
  const std::int64_t hidden = shape.hidden;
  const std::int64_t width = shape.width;
  run.count_product(plan.slots(), 6 * width, hidden);

  // Everything of a range of rows but the weights' gradients; fills the tile.
  const auto rows_backward = [&](const host_detail::expert_rows& rows, const tile& t,
                                 Real* dweighted) {
    host_detail::gather_rows(plan, rows.begin, rows.end, x, t.x);
    host_detail::gather_rows(plan, rows.begin, rows.end, dout, t.dout);
    const matrix_view<const Compute> down_e(down + rows.expert * hidden * width, hidden, width);
    product_serial(matrix_view<const Compute>(t.dout, rows.rows(), hidden), down_e,
                   matrix_view<Real>(dweighted, rows.rows(), width));
    for (std::int64_t slot = rows.begin; slot < rows.end; ++slot) {
      const std::int64_t row = slot - rows.begin;
      const std::int64_t assignment = plan.assignment(slot);
      dweights[assignment] = expert_activation_backward_row(
          saved_gate_up + slot * 2 * width, dweighted + row * width, width, weights[assignment],
          t.dgate_up + row * 2 * width, t.weighted + row * width);
    }
    const matrix_view<const Compute> gate_up_e(gate_up + rows.expert * 2 * width * hidden,
                                               2 * width, hidden);
    product_serial(matrix_view<const Compute>(t.dgate_up, rows.rows(), 2 * width), gate_up_e,
                   dx_slots.rows_between(rows.begin, rows.end));
  };
  // Rows [first, last) of an expert's 2f + H rows of weight gradients, over all rows of the tile.
  const auto weights_backward = [&](const host_detail::expert_rows& rows, const tile& t,
                                    std::int64_t first, std::int64_t last) {
    const std::int64_t gate_up_last = std::min(last, 2 * width);
    if (first < gate_up_last) {
      const matrix_view<const Compute> dgate_up_tile(t.dgate_up, rows.rows(), 2 * width);
      const matrix_view<Real> to(dgate_up + rows.expert * 2 * width * hidden, 2 * width, hidden);
      product_serial(transposed(dgate_up_tile.columns_between(first, gate_up_last)),
                     matrix_view<const Compute>(t.x, rows.rows(), hidden),
                     to.rows_between(first, gate_up_last), into::accumulate);
    }
    const std::int64_t down_first = std::max(first - 2 * width, std::int64_t{0});
    const std::int64_t down_last = last - 2 * width;
    if (down_first < down_last) {
      const matrix_view<const Compute> dout_tile(t.dout, rows.rows(), hidden);
      const matrix_view<Real> to(ddown + rows.expert * hidden * width, hidden, width);
      product_serial(transposed(dout_tile.columns_between(down_first, down_last)),
                     matrix_view<const Compute>(t.weighted, rows.rows(), width),
                     to.rows_between(down_first, down_last), into::accumulate);
    }
  };

  const std::int64_t tile_rows = std::min(expert_block_rows, plan.slots());
  const std::int64_t tile_bytes = tile::bytes(shape, tile_rows);
  const std::int64_t thread_bytes =
      tile_bytes + aligned_bytes(tile_rows * width * static_cast<std::int64_t>(sizeof(Real)));
  std::byte* memory =
      thread_scratch<std::byte, host_detail::expert_tiles>(run.threads() * thread_bytes);
  const auto dweighted_of_worker = [&] {
    return reinterpret_cast<Real*>(memory + host_detail::worker(run.threads()) * thread_bytes +
                                   tile_bytes);
  };

  // Experts of at most one block: rows and weights at once, everything stays in one thread's cache.
  // A wave ends inside at most two experts, so it has at most two blocks for each full one.
  const std::int64_t most = shape.experts + 2 * (expert_wave_rows / expert_block_rows) + 4;
  auto* tasks = thread_scratch<host_detail::expert_rows, host_detail::expert_tasks>(2 * most);
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    if (plan.count(e) > 0 && plan.count(e) <= expert_block_rows)
      tasks[count++] = {e, plan.offsets[e], plan.offsets[e + 1]};
  std::sort(tasks, tasks + count,
            [](const host_detail::expert_rows& a, const host_detail::expert_rows& b) {
              return a.rows() != b.rows() ? a.rows() > b.rows() : a.begin < b.begin;
            });
  for_each_block(run, count, 1, [&](std::int64_t index, std::int64_t) {
    const tile t(shape, tile_rows, memory + host_detail::worker(run.threads()) * thread_bytes);
    rows_backward(tasks[index], t, dweighted_of_worker());
    weights_backward(tasks[index], t, 0, 2 * width + hidden);
  });

  // Larger experts, in waves of a bounded number of rows: first all rows in blocks, then the weight
  // gradients in panels. The memory is asked for even if no expert is large, so that the first step
  // fixes it.
  if (plan.slots() <= expert_block_rows) return;
  const std::int64_t wave_rows = std::min(expert_wave_rows, plan.slots());
  const tile wave(
      shape, wave_rows,
      thread_scratch<std::byte, host_detail::expert_wave>(tile::bytes(shape, wave_rows)));
  host_detail::expert_rows* parts = tasks + most;  // of one wave: rows of one expert each
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
      parts[part_count++] = {expert, begin, end};
      for (std::int64_t s = begin; s < end; s += expert_block_rows)
        tasks[block_count++] = {expert, s, std::min(s + expert_block_rows, end)};
      filled += end - begin;
      done += end - begin;
      if (done == plan.count(expert)) {
        ++expert;
        done = 0;
      }
    }
    // Where a block's or a part's tile begins in the wave: blocks are in the order of their slots,
    // and skipped experts take no room.
    const auto place_in_wave = [&](std::int64_t slot) {
      std::int64_t place = 0;
      for (std::int64_t p = 0; p < part_count; ++p) {
        if (slot < parts[p].end) return place + slot - parts[p].begin;
        place += parts[p].rows();
      }
      return place;
    };
    for_each_block(run, block_count, 1, [&](std::int64_t index, std::int64_t) {
      rows_backward(tasks[index], wave.from(shape, place_in_wave(tasks[index].begin)),
                    dweighted_of_worker());
    });
    constexpr std::int64_t panel = 128;
    const std::int64_t panels = (2 * width + hidden + panel - 1) / panel;
    for_each_block(run, part_count * panels, 1, [&](std::int64_t index, std::int64_t) {
      const host_detail::expert_rows& part = parts[index / panels];
      const std::int64_t first = index % panels * panel;
      weights_backward(part, wave.from(shape, place_in_wave(part.begin)), first,
                       std::min(first + panel, 2 * width + hidden));
    });
  }
}

}  // namespace host_backend
}  // namespace smelt
