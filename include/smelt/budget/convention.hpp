// SPDX-License-Identifier: Apache-2.0
//
// Every choice that lets two people count the same model differently, each with a name.
//
//   masks     how many positions a query attends: attended<N>, causal<T>, full_mask<T>, packed<...>
//   passes    training = 3 * forward (forward, gradient of inputs, gradient of weights)
//   parts     the router is in unless router_out; the head is out unless head_in
//   actives   a looped layer counts once (per_traversal) or once per visit (per_execution)
//
// One multiply-add is two FLOPs. Norms, softmax, rotary embedding and SwiGLU's elementwise part are
// not counted, the embedding lookup costs nothing. Source: paper section 3.
#pragma once

#include <concepts>
#include <cstdint>

namespace smelt {

/// A mask as two integers: over `tokens` queries, `pairs` (query, attended position) in all.
/// Their quotient is the mean number of attended positions, kept exact.
template <class M>
concept attention_mask = requires {
  { M::tokens } -> std::convertible_to<std::int64_t>;
  { M::pairs } -> std::convertible_to<std::int64_t>;
};

/// Mean number of attended positions given directly; the paper's documents have 391.
template <std::int64_t Positions>
struct attended {
  static_assert(Positions > 0, "attended<Positions>: a query attends at least itself");
  static constexpr std::int64_t tokens = 1;
  static constexpr std::int64_t pairs = Positions;
};

/// One document of Length tokens; a token attends itself and all before: Length (Length + 1) / 2.
template <std::int64_t Length>
struct causal {
  static_assert(Length > 0, "causal<Length>: the sequence needs at least 1 token");
  static constexpr std::int64_t tokens = Length;
  static constexpr std::int64_t pairs = Length * (Length + 1) / 2;
};

/// Every token attends every token; for comparison with tools that count so.
template <std::int64_t Length>
struct full_mask {
  static_assert(Length > 0, "full_mask<Length>: the sequence needs at least 1 token");
  static constexpr std::int64_t tokens = Length;
  static constexpr std::int64_t pairs = Length * Length;
};

/// Documents of these lengths behind one another, each causal on its own.
template <std::int64_t... Lengths>
struct packed {
  static_assert(sizeof...(Lengths) > 0, "packed<Lengths...>: name at least one document length");
  static_assert(((Lengths > 0) && ...), "packed<Lengths...>: a document needs at least 1 token");
  static constexpr std::int64_t tokens = (Lengths + ... + 0);
  static constexpr std::int64_t pairs = ((Lengths * (Lengths + 1) / 2) + ... + 0);
};

namespace convention {
struct training {};       // default: three times forward
struct forward {};        // forward only
struct router_in {};      // default: the router's product counts
struct router_out {};     // it does not
struct head_out {};       // default: the output head does not count
struct head_in {};        // it does; needs a language_model
struct per_traversal {};  // default: active parameters of one pass over the physical layers
struct per_execution {};  // active parameters, a looped layer once per visit
}  // namespace convention

namespace detail {
template <class T, class... Ts>
inline constexpr bool names = (std::same_as<T, Ts> || ...);

template <class T>
concept flop_convention = names<T, convention::training, convention::forward, convention::router_in,
                                convention::router_out, convention::head_out, convention::head_in>;
template <class T>
concept active_convention = names<T, convention::per_traversal, convention::per_execution>;
}  // namespace detail

}  // namespace smelt
