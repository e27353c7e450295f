// SPDX-License-Identifier: Apache-2.0
//
// Communication of a training step, in bytes that one rank sends. Ranks stand in a grid: groups of
// R_e expert ranks share the routed experts, R_d replicas of such a group share the data; every
// rank has tokens of its own, and all weights but routed experts. R = R_e R_d.
//
//   all-to-all, per executed MoE layer, four times (dispatch and combine, forward and backward):
//     ceil(tokens k (R_e - 1) / R_e) copies of H activations
//   gradients, once per step, of n parameters over r ranks, each shard padded to ceil(n / r):
//     all-reduce as a ring 2 (r - 1) ceil(n / r)
//     sharded optimizer: reduce-scatter (r - 1) ceil(n / r), all-gather of weights the same
//   with r = R for replicated weights, r = R_d for the ceil(E / R_e) experts of a rank
//
// A looped layer sends activations at every visit, but its weights have one gradient, sent once.
// Both ceil are exact where the division is. Not counted: expert indices, router weights, token
// counts, norms for clipping (together below 1 % of a copy's H elements from H = 512 on), balancing
// statistics. Source: paper section 1 for visits and weights; the ring as in any collective
// library.
#pragma once

#include <cstdint>

#include "smelt/budget/kv_cache.hpp"
#include "smelt/budget/parameters.hpp"

namespace smelt {

/// Replicas groups of ExpertRanks ranks each. rank_grid<1, 8> is plain data parallelism,
/// rank_grid<8> spreads the experts over all eight.
template <std::int64_t ExpertRanks, std::int64_t Replicas = 1>
struct rank_grid {
  static_assert(ExpertRanks >= 1,
                "rank_grid<ExpertRanks, Replicas>: ExpertRanks must be at least 1, which keeps all "
                "experts on every rank");
  static_assert(Replicas >= 1,
                "rank_grid<ExpertRanks, Replicas>: Replicas must be at least 1, which reduces "
                "expert gradients nowhere");
  static constexpr std::int64_t expert_ranks = ExpertRanks;
  static constexpr std::int64_t replicas = Replicas;
  static constexpr std::int64_t ranks = ExpertRanks * Replicas;
};

/// How numbers are stored on their way. Defaults: activations as the products read them; gradients
/// in the precision in which they are summed; weights, gathered after a sharded optimizer's step,
/// as the products read them. The master weights stay where they are.
template <class Activations = storage::bf16, class Gradients = storage::float32,
          class Weights = storage::bf16>
struct wire_format {
  static constexpr std::int64_t activation_bytes = Activations::bytes;
  static constexpr std::int64_t gradient_bytes = Gradients::bytes;
  static constexpr std::int64_t weight_bytes = Weights::bytes;
};

namespace convention {
struct replicated_optimizer {};  // default: gradients all-reduced, every rank updates all weights
struct sharded_optimizer {};     // gradients reduce-scattered, updated weights all-gathered
struct spread_routing {};        // default: copies spread evenly, 1 / R_e of them stays on its rank
struct worst_routing {};         // every copy leaves its rank: what buffers must hold
struct per_rank {};              // default: what one rank sends, which is what it receives
struct all_ranks {};             // the sum over all ranks
}  // namespace convention

/// Bytes sent in one training step, by purpose.
struct traffic_split {
  std::int64_t dispatch_forward = 0;   // activations to the experts
  std::int64_t combine_forward = 0;    // their outputs back
  std::int64_t combine_backward = 0;   // gradients of the outputs to the experts
  std::int64_t dispatch_backward = 0;  // gradients of the activations back
  std::int64_t gradients = 0;          // all-reduce, or reduce-scatter
  std::int64_t weights = 0;            // all-gather; 0 with a replicated optimizer

  constexpr std::int64_t all_to_all() const {
    return dispatch_forward + combine_forward + combine_backward + dispatch_backward;
  }
  constexpr std::int64_t total() const { return all_to_all() + gradients + weights; }
  constexpr traffic_split times(std::int64_t factor) const {
    return {dispatch_forward * factor,  combine_forward * factor, combine_backward * factor,
            dispatch_backward * factor, gradients * factor,       weights * factor};
  }
  constexpr bool operator==(const traffic_split&) const = default;
};

namespace detail {
template <class T>
inline constexpr bool is_rank_grid = false;
template <std::int64_t E, std::int64_t R>
inline constexpr bool is_rank_grid<rank_grid<E, R>> = true;

template <class T>
inline constexpr bool is_wire_format = false;
template <class A, class G, class W>
inline constexpr bool is_wire_format<wire_format<A, G, W>> = true;

template <class T>
concept traffic_convention =
    names<T, convention::replicated_optimizer, convention::sharded_optimizer,
          convention::spread_routing, convention::worst_routing, convention::per_rank,
          convention::all_ranks> || is_wire_format<T>;

// The wire format among the options, the default where there is none.
template <class... Options>
struct chosen_wire {
  using type = wire_format<>;
};
template <class First, class... Rest>
struct chosen_wire<First, Rest...> : chosen_wire<Rest...> {};
template <class A, class G, class W, class... Rest>
struct chosen_wire<wire_format<A, G, W>, Rest...> {
  using type = wire_format<A, G, W>;
};

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// Elements that a rank sends in half a ring: r - 1 shards of equal, whole size.
constexpr std::int64_t ring_elements(std::int64_t elements, std::int64_t ranks) {
  return (ranks - 1) * divide_up(elements, ranks);
}

// Activations that one of the four exchanges of a step sends from one rank, all visits together.
template <architecture A>
constexpr std::int64_t exchanged_elements(std::int64_t tokens, std::int64_t expert_ranks,
                                          bool worst) {
  std::int64_t elements = 0;
  for (const span_shape& span : A::spans) {
    const std::int64_t copies = tokens * span.ffn.top_k;  // 0 in a dense span
    const std::int64_t leaving =
        worst ? copies : divide_up(copies * (expert_ranks - 1), expert_ranks);
    elements += span.layers * span.visits * leaving * A::hidden_size;
  }
  return expert_ranks == 1 ? 0 : elements;
}

// Parameters of routed experts on the rank that holds most of them; 1 expert rank holds them all.
template <architecture A>
constexpr std::int64_t routed_parameters(std::int64_t expert_ranks) {
  std::int64_t parameters = 0;
  for (const span_shape& span : A::spans) {
    const std::int64_t held = divide_up(span.ffn.experts, expert_ranks);  // 0 in a dense span
    parameters += span.layers * held * 3 * A::hidden_size * span.ffn.width;
  }
  return parameters;
}
}  // namespace detail

/// Bytes sent in one training step in which each rank has `tokens_per_rank` tokens; by default one
/// rank's. Options, in any order: a wire_format<...> and the conventions named above. A
/// language_model's embedding and head count among the replicated weights, tied ones once.
template <countable A, class Grid, class... Options>
constexpr traffic_split traffic_per_step(std::int64_t tokens_per_rank) {
  static_assert(detail::is_rank_grid<Grid>,
                "traffic_per_step<A, Grid, ...>: Grid must be rank_grid<ExpertRanks, Replicas>");
  static_assert((detail::traffic_convention<Options> && ...),
                "traffic_per_step<A, Grid, Options...>: an option must be a wire_format<...> or "
                "one of convention::replicated_optimizer, sharded_optimizer, spread_routing, "
                "worst_routing, per_rank, all_ranks");
  using body = body_of<A>;
  using wire = typename detail::chosen_wire<Options...>::type;
  constexpr bool worst = detail::names<convention::worst_routing, Options...>;
  constexpr bool sharded = detail::names<convention::sharded_optimizer, Options...>;

  const std::int64_t exchange =
      detail::exchanged_elements<body>(tokens_per_rank, Grid::expert_ranks, worst) *
      wire::activation_bytes;
  const std::int64_t replicated = parameters<A> - detail::routed_parameters<body>(1);
  const std::int64_t half_ring =
      detail::ring_elements(replicated, Grid::ranks) +
      detail::ring_elements(detail::routed_parameters<body>(Grid::expert_ranks), Grid::replicas);

  traffic_split sent;
  sent.dispatch_forward = exchange;
  sent.combine_forward = exchange;
  sent.combine_backward = exchange;
  sent.dispatch_backward = exchange;
  sent.gradients = half_ring * wire::gradient_bytes * (sharded ? 1 : 2);
  sent.weights = sharded ? half_ring * wire::weight_bytes : 0;
  return detail::names<convention::all_ranks, Options...> ? sent.times(Grid::ranks) : sent;
}

}  // namespace smelt
