// SPDX-License-Identifier: Apache-2.0
//
// Spans: how many layers stand next to each other, and how often they are executed.
//
//   plain<3>            layers 1 2 3
//   looped<2, 3>        layers 1 2 1 2 1 2            (one set of weights, three visits)
//   repeated<2, A, B>   spans A B A B                 (new weights each time)
//
// A span may name its own feed-forward: plain<1, dense<6144>> inside a MoE stack.
// Source: paper section 1 (span, visit, physical and executed layers).
#pragma once

#include <cstdint>

#include "smelt/arch/experts.hpp"

namespace smelt {

/// The feed-forward of the transformer that the span stands in.
struct inherited_ffn {};

/// Layers physical layers, each executed once.
template <std::int64_t Layers, class Ffn = inherited_ffn>
struct plain {
  static_assert(Layers > 0, "plain<Layers>: a span needs at least 1 layer; leave it out for none");
  static constexpr std::int64_t layers = Layers;
};

/// Layers physical layers, executed in order Visits times with the same weights.
template <std::int64_t Layers, std::int64_t Visits, class Ffn = inherited_ffn>
struct looped {
  static_assert(Layers > 0,
                "looped<Layers, Visits>: a span needs at least 1 layer; leave it out for none");
  static_assert(Visits >= 1,
                "looped<Layers, Visits>: Visits must be at least 1; plain<Layers> is one visit");
  static constexpr std::int64_t layers = Layers;
};

/// Times copies of a list of spans, one after the other, each copy with its own weights.
template <std::int64_t Times, class... Spans>
struct repeated {
  static_assert(Times > 0, "repeated<Times, Spans...>: Times must be at least 1");
  static_assert(sizeof...(Spans) > 0, "repeated<Times, Spans...>: name at least one span");
};

/// One span as numbers. `first_layer` counts physical layers from 0.
struct span_shape {
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  std::int64_t visits = 1;
  ffn_shape ffn{};
  constexpr bool operator==(const span_shape&) const = default;
};

namespace detail {
// How many plain or looped spans a (possibly nested) span flattens to; 0 marks a foreign type.
template <class Span>
inline constexpr std::int64_t flat_spans = 0;
template <std::int64_t L, class F>
inline constexpr std::int64_t flat_spans<plain<L, F>> = 1;
template <std::int64_t L, std::int64_t V, class F>
inline constexpr std::int64_t flat_spans<looped<L, V, F>> = 1;
template <std::int64_t T, class... S>
inline constexpr std::int64_t flat_spans<repeated<T, S...>> = (T > 0 ? T : 1) *
                                                              (flat_spans<S> + ... + 0);

template <class Ffn, class Default>
constexpr ffn_shape ffn_or(Ffn*, Default*) {
  static_assert(is_ffn<Ffn>, "a span's own feed-forward must be moe<...> or dense<...>");
  return ffn_shape_of<Ffn>;
}
template <class Default>
constexpr ffn_shape ffn_or(inherited_ffn*, Default*) {
  return ffn_shape_of<Default>;
}

// Writes spans into a flat array; overloads select by tag pointer, so nothing is ever constructed.
template <class Default>
struct span_writer {
  span_shape* next;
  std::int64_t layer = 0;

  constexpr void put(std::int64_t layers, std::int64_t visits, ffn_shape ffn) {
    *next++ = span_shape{layer, layers, visits, ffn};
    layer += layers;
  }
  template <std::int64_t L, class F>
  constexpr void add(plain<L, F>*) {
    put(plain<L, F>::layers, 1, ffn_or(static_cast<F*>(nullptr), static_cast<Default*>(nullptr)));
  }
  template <std::int64_t L, std::int64_t V, class F>
  constexpr void add(looped<L, V, F>*) {
    put(looped<L, V, F>::layers, V,
        ffn_or(static_cast<F*>(nullptr), static_cast<Default*>(nullptr)));
  }
  template <std::int64_t T, class... S>
  constexpr void add(repeated<T, S...>*) {
    static_assert(sizeof(repeated<T, S...>) > 0);  // completes the type: its own checks speak
    for (std::int64_t time = 0; time < T; ++time) (add(static_cast<S*>(nullptr)), ...);
  }
};
}  // namespace detail

}  // namespace smelt
