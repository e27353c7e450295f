// SPDX-License-Identifier: Apache-2.0
//
// stack<Spans...>: the layers of a model from input to output, as a list of spans.
//
//   physical layers L    = sum of layers
//   executed layers      = sum of layers * visits          (paper: L + (r - 1) m)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "smelt/arch/span.hpp"

namespace smelt {

/// Spans from input to output, in any number and order.
template <class... Spans>
struct stack {
  static_assert(sizeof...(Spans) > 0,
                "stack<>: an empty stack has no layers; name at least one span, e.g. plain<12>");
  static_assert(((detail::flat_spans<Spans> > 0) && ...),
                "stack<Spans...>: every span must be plain<>, looped<> or repeated<>");
};

namespace detail {
template <class T>
inline constexpr bool is_stack = false;
template <class... S>
inline constexpr bool is_stack<stack<S...>> = true;

template <class Default, class... S>
constexpr auto flatten(stack<S...>*) {
  constexpr std::int64_t count = (flat_spans<S> + ... + 0);
  std::array<span_shape, static_cast<std::size_t>(count)> spans{};
  span_writer<Default> writer{spans.data()};
  (writer.add(static_cast<S*>(nullptr)), ...);
  return spans;
}
}  // namespace detail

}  // namespace smelt
