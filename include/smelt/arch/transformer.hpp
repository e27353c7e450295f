// SPDX-License-Identifier: Apache-2.0
//
// transformer<Hidden, Attention, Ffn, Stack, Options...>: a decoder-only body as a type.
//
// Each layer is pre-norm, two RMSNorms with gain, two residual updates. In a span of r visits
//
//   x += s * Attention(RMSNorm(x)),   x += s * Ffn(RMSNorm(x)),   s = 1/r or 1
//
// Options, in any order, each at most once: qk_norm, kv_cache, position, residual_scale, router.
// The body has no embedding, final norm or head: language_model adds them.
// Source: paper section 1.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "smelt/arch/attention.hpp"
#include "smelt/arch/experts.hpp"
#include "smelt/arch/span.hpp"
#include "smelt/arch/stack.hpp"

namespace smelt {

namespace detail {
template <class T>
concept body_option = qk_norm_option<T> || kv_cache_option<T> || position_option<T> ||
    residual_scale_option<T> || router_option<T>;

template <class... Options>
struct body_options {
  static_assert((body_option<Options> && ...),
                "transformer<..., Options...>: an option must be one of qk_norm::, kv_cache::, "
                "position::, residual_scale:: or router::");
  static_assert((0 + ... + int{qk_norm_option<Options>}) <= 1 &&
                    (0 + ... + int{kv_cache_option<Options>}) <= 1 &&
                    (0 + ... + int{position_option<Options>}) <= 1 &&
                    (0 + ... + int{residual_scale_option<Options>}) <= 1 &&
                    (0 + ... + int{router_option<Options>}) <= 1,
                "transformer<..., Options...>: the same kind of option is named twice; keep one");

  template <class Tag>
  static constexpr bool has = (std::same_as<Tag, Options> || ...);

  static constexpr qk_norm_kind norm = has<qk_norm::per_head>     ? qk_norm_kind::per_head
                                       : has<qk_norm::full_width> ? qk_norm_kind::full_width
                                                                  : qk_norm_kind::none;

  template <class Option>
  static consteval std::int64_t base_of() {
    if constexpr (position_option<Option>)
      return Option::base;
    else
      return 0;
  }
  // 10000 is the base of the original rotary embedding; a named position option replaces it.
  static constexpr std::int64_t rope_base =
      (position_option<Options> || ...) ? (std::int64_t{0} + ... + base_of<Options>()) : 10'000;
};
}  // namespace detail

/// A decoder-only body. A user names it by deriving: `struct baseline : transformer<...> {};`
/// (the name then stands in every diagnostic).
template <class Hidden, class Attention, class Ffn, class Stack, class... Options>
struct transformer {
  static_assert(detail::is_hidden<Hidden>,
                "transformer<Hidden, ...>: the first argument must be hidden<Size>");
  static_assert(detail::is_attention<Attention>,
                "transformer<Hidden, Attention, ...>: the second argument must be gqa<...> or "
                "mha<...>");
  static_assert(detail::is_ffn<Ffn>,
                "transformer<Hidden, Attention, Ffn, ...>: the third argument must be moe<...> or "
                "dense<...>");
  static_assert(detail::is_stack<Stack>,
                "transformer<Hidden, Attention, Ffn, Stack>: the fourth argument must be "
                "stack<...>");
  static_assert(sizeof(Stack) > 0);  // completes the type: its own checks speak first

  using options = detail::body_options<Options...>;
  static_assert(options::rope_base == 0 || Attention::head_dim % 2 == 0,
                "transformer: rotary embedding turns pairs of elements, so the head size must be "
                "even; choose an even HeadDim or position::none");

  /// Width of the residual stream, in elements.
  static constexpr std::int64_t hidden_size = Hidden::size;
  static constexpr attention_shape attention{Attention::query_heads,
                                             Attention::kv_heads,
                                             Attention::head_dim,
                                             options::norm,
                                             options::template has<kv_cache::shared>,
                                             options::rope_base};
  /// The stack as a flat array of plain and looped spans, input first.
  static constexpr auto spans = detail::flatten<Ffn>(static_cast<Stack*>(nullptr));
  static constexpr bool residual_scaled = !options::template has<residual_scale::one>;
  static constexpr bool router_renormalized = !options::template has<router::plain_softmax>;
};

/// A body whose budgets can be counted: transformer<...> or a type derived from it.
template <class A>
concept architecture = requires {
  { A::hidden_size } -> std::convertible_to<std::int64_t>;
  { A::attention.query_width() } -> std::convertible_to<std::int64_t>;
  A::spans.size();
  A::residual_scaled;
};

/// Physical layers, each counted once however often it is visited.
template <architecture A>
inline constexpr std::int64_t layers = [] {
  std::int64_t total = 0;
  for (const span_shape& span : A::spans) total += span.layers;
  return total;
}();

/// Executed layers: physical layers times their visits.
template <architecture A>
inline constexpr std::int64_t executed_layers = [] {
  std::int64_t total = 0;
  for (const span_shape& span : A::spans) total += span.layers * span.visits;
  return total;
}();

}  // namespace smelt
