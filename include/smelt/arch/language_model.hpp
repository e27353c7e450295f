// SPDX-License-Identifier: Apache-2.0
//
// language_model<Body, vocabulary<V>, tied|untied>: a body with token embedding, final RMSNorm and
// output head.
//
//   embedding V * hidden,  final norm hidden,  head V * hidden (untied) or the embedding's (tied)
//
// The body's budgets stay non-embedding, as the paper counts them.
#pragma once

#include <concepts>
#include <cstdint>

#include "smelt/arch/transformer.hpp"

namespace smelt {

/// Number of different tokens.
template <std::int64_t Size>
struct vocabulary {
  static_assert(Size > 0, "vocabulary<Size>: the vocabulary needs at least 1 token");
  static constexpr std::int64_t size = Size;
};

/// The head has its own matrix.
struct untied {};
/// The head is the embedding matrix: one set of weights and one gradient.
struct tied {};

namespace detail {
template <class T>
inline constexpr bool is_vocabulary = false;
template <std::int64_t Size>
inline constexpr bool is_vocabulary<vocabulary<Size>> = true;
}  // namespace detail

template <class Body, class Vocabulary, class Tying = untied>
struct language_model {
  static_assert(architecture<Body>,
                "language_model<Body, ...>: Body must be a transformer<...> or derive from one");
  static_assert(detail::is_vocabulary<Vocabulary>,
                "language_model<Body, Vocabulary>: the second argument must be vocabulary<Size>");
  static_assert(std::same_as<Tying, tied> || std::same_as<Tying, untied>,
                "language_model<Body, Vocabulary, Tying>: Tying must be tied or untied");
  using body = Body;
  static constexpr std::int64_t vocabulary_size = Vocabulary::size;
  static constexpr bool is_tied = std::same_as<Tying, tied>;
};

/// A body with embedding and head: language_model<...> or a type derived from it.
template <class M>
concept has_head = requires {
  typename M::body;
  { M::vocabulary_size } -> std::convertible_to<std::int64_t>;
  M::is_tied;
}
&&architecture<typename M::body>;

namespace detail {
template <class A>
struct body_selector {
  using type = A;
};
template <has_head M>
struct body_selector<M> {
  using type = typename M::body;
};
}  // namespace detail

/// Either kind; what the accounting accepts.
template <class A>
concept countable = architecture<A> || has_head<A>;

/// The body of a language model; a body is its own.
template <countable A>
using body_of = typename detail::body_selector<A>::type;

}  // namespace smelt
