// SPDX-License-Identifier: Apache-2.0
//
// FLOPs per token, exact. Forward, per executed layer, with ell the mean attended positions:
//
//   projections 2 (2 H q + 2 H kv)   attention 4 q ell   router 2 H E   experts 2 * 3 H f k
//   shared expert 2 * 3 H f_s        dense 2 * 3 H f     head 2 H V (once)
//
// Training is three times that: F = 6 L_exec (2Hq + 2Hkv + HE + 3Hfk) + 12 L_exec q ell.
// Where kv_cache::shared lets the first visit's keys and values serve all visits, the later visits
// have no key and value projections to pay. Source: paper section 3.
#pragma once

#include <cstdint>

#include "smelt/arch/language_model.hpp"
#include "smelt/budget/convention.hpp"

namespace smelt {

/// FLOPs by part; the unit (per token, per sequence, per step; forward or training) is that of the
/// name it came from.
struct flop_split {
  std::int64_t projections = 0;
  std::int64_t attention = 0;
  std::int64_t router = 0;
  std::int64_t experts = 0;  // routed, shared or dense: the whole feed-forward
  std::int64_t head = 0;

  constexpr std::int64_t total() const { return projections + attention + router + experts + head; }
  constexpr flop_split times(std::int64_t factor) const {
    return {projections * factor, attention * factor, router * factor, experts * factor,
            head * factor};
  }
  constexpr bool operator==(const flop_split&) const = default;
};

namespace detail {
// Forward FLOPs of `tokens` tokens that attend `pairs` positions in all: linear in both, so exact.
template <countable A>
constexpr flop_split forward_flops(std::int64_t tokens, std::int64_t pairs) {
  using body = body_of<A>;
  const std::int64_t hidden = body::hidden_size;
  const std::int64_t q = body::attention.query_width();
  const std::int64_t kv = body::attention.kv_width();
  flop_split split;
  for (const span_shape& span : body::spans) {
    const std::int64_t executed = span.layers * span.visits;
    const std::int64_t kv_executed = body::attention.kv_shared_by_visits ? span.layers : executed;
    split.projections += tokens * 2 * (executed * 2 * hidden * q + kv_executed * 2 * hidden * kv);
    split.attention += pairs * executed * 4 * q;
    split.router += tokens * executed * 2 * hidden * span.ffn.experts;
    split.experts += tokens * executed * 6 * hidden * span.ffn.active_width();
  }
  if constexpr (has_head<A>) split.head = tokens * 2 * hidden * A::vocabulary_size;
  return split;
}

template <countable A, class... Conventions>
consteval flop_split convene(flop_split forward) {
  static_assert((flop_convention<Conventions> && ...),
                "flops_per_token<A, Mask, Conventions...>: a convention must be one of "
                "convention::training, forward, router_in, router_out, head_in, head_out");
  static_assert(has_head<A> || !names<convention::head_in, Conventions...>,
                "convention::head_in: a body has no head to count; ask a language_model<Body, "
                "vocabulary<V>> instead");
  if (names<convention::router_out, Conventions...>) forward.router = 0;
  if (!names<convention::head_in, Conventions...>) forward.head = 0;
  return forward.times(names<convention::forward, Conventions...> ? 1 : 3);
}

template <class A, class Mask>
consteval flop_split per_token(flop_split sequence) {
  static_assert(
      Mask::pairs > 0 && forward_flops<A>(Mask::tokens, Mask::pairs).attention % Mask::tokens == 0,
      "flops_per_token<A, Mask>: under this mask the FLOPs per token are not a whole "
      "number; ask flops_per_sequence<A, Mask>, which is exact");
  return {sequence.projections / Mask::tokens, sequence.attention / Mask::tokens,
          sequence.router / Mask::tokens, sequence.experts / Mask::tokens,
          sequence.head / Mask::tokens};
}
}  // namespace detail

/// FLOPs of one sequence of Mask::tokens tokens, by part.
template <countable A, attention_mask Mask, class... Conventions>
inline constexpr flop_split flops_per_sequence_split =
    detail::convene<A, Conventions...>(detail::forward_flops<A>(Mask::tokens, Mask::pairs));

/// FLOPs of one sequence of Mask::tokens tokens; training, router in, head out by default.
template <countable A, attention_mask Mask, class... Conventions>
inline constexpr std::int64_t flops_per_sequence =
    flops_per_sequence_split<A, Mask, Conventions...>.total();

/// FLOPs per token, by part.
template <countable A, attention_mask Mask, class... Conventions>
inline constexpr flop_split flops_per_token_split =
    detail::per_token<A, Mask>(flops_per_sequence_split<A, Mask, Conventions...>);

/// FLOPs per token; training, router in, head out by default (the paper's F).
template <countable A, attention_mask Mask, class... Conventions>
inline constexpr std::int64_t flops_per_token =
    flops_per_token_split<A, Mask, Conventions...>.total();

/// Training FLOPs of a step of `tokens` tokens that attend `pairs` positions in all, head included
/// where there is one: what the run-time counters must add up to. 64 bit: a step, not a run.
template <countable A>
constexpr flop_split flops_per_step(std::int64_t tokens, std::int64_t pairs) {
  return detail::forward_flops<A>(tokens, pairs).times(3);
}

/// Training FLOPs of a whole run. In double, because a run passes 2^63 (9.2e18); the relative error
/// is below 1e-15.
template <countable A, attention_mask Mask, class... Conventions>
constexpr double run_flops(double tokens) {
  return tokens / static_cast<double>(Mask::tokens) *
         static_cast<double>(flops_per_sequence<A, Mask, Conventions...>);
}

}  // namespace smelt
