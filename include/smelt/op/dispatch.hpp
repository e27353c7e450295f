// SPDX-License-Identifier: Apache-2.0
//
// Dropless dispatch: every (token, choice) pair gets a slot, slots are sorted by expert.
//
//   slots of expert e = [offsets[e], offsets[e + 1])         offsets [E + 1], last = N top_k
//   within an expert  : ascending by token (and by choice)   stable, so always the same order
//   slot_of[n top_k + k] = slot,  token_of[slot] = n,  choice_of[slot] = k
//
//   combine:  out[n] (+)= scale * sum_k y[slot_of[n top_k + k]],  k ascending;  y [N top_k, H]
//
// Nothing is dropped or padded, so no row past the last offset exists. The backward of gathering x
// into slots is combine over the gradients of the slots; the backward of combine is a gather.
// A counting sort: chunks of tokens count their experts, one scan over (expert, chunk), chunks
// place their tokens. Floor: N top_k indices read twice, three written. Source: paper section 1
// (dropless top-8); the sort is the usual one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/host_device.hpp"
#include "smelt/exec/into.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

/// A view of one dispatch; 64 bits throughout, since tokens * top_k * hidden passes 2^31.
struct dispatch_plan {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t* offsets = nullptr;    // [experts + 1]
  std::int64_t* slot_of = nullptr;    // [tokens * top_k]
  std::int64_t* token_of = nullptr;   // [tokens * top_k]
  std::int32_t* choice_of = nullptr;  // [tokens * top_k]

  SMELT_HD std::int64_t slots() const { return tokens * top_k; }
  SMELT_HD std::int64_t count(std::int64_t expert) const {
    return offsets[expert + 1] - offsets[expert];
  }
  /// Where the weight of a slot stands in a [tokens, top_k] array.
  SMELT_HD std::int64_t assignment(std::int64_t slot) const {
    return token_of[slot] * top_k + choice_of[slot];
  }
};

/// One row of combine: out (+)= scale * sum_k y[slots[k]]. Columns in tiles that stay in registers,
/// so that out is written once.
template <class Slot, class Real>
SMELT_HD void combine_row(const matrix_view<const Slot>& y, const std::int64_t* slots,
                          std::int64_t top_k, Real scale, bool add, Real* out) {
  constexpr std::int64_t tile = 64;
  for (std::int64_t begin = 0; begin < y.columns; begin += tile) {
    const std::int64_t width = y.columns - begin < tile ? y.columns - begin : tile;
    Real sum[tile] = {};
    for (std::int64_t k = 0; k < top_k; ++k) {
      const Slot* row = y.row(slots[k]) + begin;
      if (width == tile)
        for (std::int64_t j = 0; j < tile; ++j) sum[j] += static_cast<Real>(row[j]);
      else
        for (std::int64_t j = 0; j < width; ++j) sum[j] += static_cast<Real>(row[j]);
    }
    Real* to = out + begin;
    if (add)
      for (std::int64_t j = 0; j < width; ++j) to[j] += scale * sum[j];
    else
      for (std::int64_t j = 0; j < width; ++j) to[j] = scale * sum[j];
  }
}

inline namespace host_backend {

namespace host_detail {
struct dispatch_counts;

// At most 64 chunks, so that the table of counts stays small beside the tokens, and at least 512
// tokens each, so that the scan over the table costs less than the sort.
inline std::int64_t dispatch_chunk(std::int64_t tokens) {
  return std::max<std::int64_t>(512, (tokens + 63) / 64);
}
}  // namespace host_detail

/// chosen [tokens, top_k] -> plan. The plan's sizes are read, its arrays are written. Throws if an
/// index is not an expert; then slot_of, token_of and choice_of are untouched.
template <class Compute>
void dispatch_forward(const host<Compute>& run, const std::int32_t* chosen,
                      const dispatch_plan& plan) {
  const std::int64_t experts = plan.experts;
  const std::int64_t chunk = host_detail::dispatch_chunk(plan.tokens);
  const std::int64_t chunks = (plan.tokens + chunk - 1) / chunk;
  // [chunks, experts + 1]; the last column counts indices that name no expert.
  std::int64_t* table = thread_scratch<std::int64_t, host_detail::dispatch_counts>(
      std::max<std::int64_t>(chunks, 1) * (experts + 1));
  for_each_block(run, plan.tokens, chunk, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t* counts = table + begin / chunk * (experts + 1);
    std::fill_n(counts, experts + 1, std::int64_t{0});
    for (std::int64_t i = begin * plan.top_k; i < end * plan.top_k; ++i) {
      const bool valid = chosen[i] >= 0 && chosen[i] < experts;
      ++counts[valid ? chosen[i] : experts];
    }
  });
  // Counts become the first slot of each chunk within each expert.
  std::int64_t next = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    plan.offsets[e] = next;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t count = table[c * (experts + 1) + e];
      table[c * (experts + 1) + e] = next;
      next += count;
    }
  }
  plan.offsets[experts] = next;
  if (next != plan.slots())
    throw error("dispatch: expected " + std::to_string(plan.slots()) + " expert indices in [0, " +
                std::to_string(experts) + "), found " + std::to_string(plan.slots() - next) +
                " outside; give it what route_forward wrote");
  for_each_block(run, plan.tokens, chunk, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t* places = table + begin / chunk * (experts + 1);
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t k = 0; k < plan.top_k; ++k) {
        const std::int64_t slot = places[chosen[n * plan.top_k + k]]++;
        plan.slot_of[n * plan.top_k + k] = slot;
        plan.token_of[slot] = n;
        plan.choice_of[slot] = static_cast<std::int32_t>(k);
      }
  });
}

/// out [N, H] (+)= scale * sum over a token's slots of y_slots [N top_k, H], which are of the
/// compute type or the real one; sums are real.
template <class Compute, class Slot>
void combine_forward(const host<Compute>& run, matrix_view<const Slot> y_slots,
                     const std::int64_t* slot_of, std::int64_t top_k,
                     typename host<Compute>::real scale, into mode,
                     matrix_view<typename host<Compute>::real> out) {
  constexpr std::int64_t block_tokens = 16;
  for_each_block(run, out.rows, block_tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      combine_row(y_slots, slot_of + n * top_k, top_k, scale, mode == into::accumulate, out.row(n));
  });
}

/// Rows of tokens [N, H] in slot order, converted: to[slot] = from[token_of[slot]]. What travels
/// to experts on other ranks.
template <class Compute, class From, class To>
void rows_to_slots(const host<Compute>& run, matrix_view<const From> from,
                   const dispatch_plan& plan, matrix_view<To> to) {
  for_each_block(run, to.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot) {
      const From* row = from.row(plan.token_of[slot]);
      for (std::int64_t j = 0; j < to.columns; ++j) to.row(slot)[j] = static_cast<To>(row[j]);
    }
  });
}

/// Routing weights in slot order: by_slot[slot] = weights[assignment(slot)], of [N, top_k].
template <class Compute, class Real>
void weights_to_slots(const host<Compute>& run, const Real* weights, const dispatch_plan& plan,
                      Real* by_slot) {
  for_each_block(run, plan.slots(), 1 << 12, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot)
      by_slot[slot] = weights[plan.assignment(slot)];
  });
}

/// And back: weights[assignment(slot)] = by_slot[slot].
template <class Compute, class Real>
void weights_from_slots(const host<Compute>& run, const Real* by_slot, const dispatch_plan& plan,
                        Real* weights) {
  for_each_block(run, plan.slots(), 1 << 12, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot)
      weights[plan.assignment(slot)] = by_slot[slot];
  });
}

/// A plan without a choice: slot i is token i, in both directions; for rows that came sorted.
template <class Compute>
void identity_dispatch(const host<Compute>& run, const dispatch_plan& plan) {
  for_each_block(run, plan.slots(), 1 << 12, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot) {
      plan.slot_of[slot] = plan.token_of[slot] = slot;
      plan.choice_of[slot] = 0;
    }
  });
}

}  // namespace host_backend
}  // namespace smelt
