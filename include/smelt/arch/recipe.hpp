// SPDX-License-Identifier: Apache-2.0
//
// Recipes: how a looped twin is made from a Baseline, and which widths the search may try.
//
//   m = L * span_percent / 100 layers, executed `visits` times
//   prelude = floor((L - m) / 2) layers before them, the rest after them
//
//   recipe::smelt                                             the paper: middle half, two visits
//   recipe::looped_middle<recipe::visits<3>,                  three visits of the middle third,
//                         recipe::span_percent<33>,           widths in steps of 64
//                         recipe::expert_width_multiple<64>>
//
// A recipe names parts, in any order, each at most once; what it leaves out is the paper's choice.
// Source: paper sections 1 (span, prelude, residual) and 6 (span, visits and depth are ablated).
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "smelt/arch/attention.hpp"
#include "smelt/arch/stack.hpp"

namespace smelt {

namespace recipe {

/// Share of the physical layers that is executed again, in percent; the layer count is rounded to
/// the nearest, a half downwards, and is at least 1.
template <std::int64_t Percent = 50>
struct span_percent {
  static_assert(Percent >= 1 && Percent <= 100,
                "recipe::span_percent<Percent>: the share of the layers must be 1 to 100 percent");
  static constexpr std::int64_t value = Percent;
};

/// How often the span is executed. One visit loops nothing: it changes depth or widths only.
template <std::int64_t Visits = 2>
struct visits {
  static_assert(Visits >= 1, "recipe::visits<Visits>: Visits must be at least 1");
  static constexpr std::int64_t value = Visits;
};

/// Physical layers of the twin; depth<0>, the default, keeps the Baseline's.
template <std::int64_t Layers = 0>
struct depth {
  static_assert(Layers >= 0,
                "recipe::depth<Layers>: Layers must be at least 1, or 0 for the Baseline's depth");
  static constexpr std::int64_t value = Layers;
};

/// The hidden size is a multiple of this.
template <std::int64_t Multiple = 8>
struct hidden_multiple {
  static_assert(Multiple >= 1, "recipe::hidden_multiple<Multiple>: must be at least 1");
  static constexpr std::int64_t value = Multiple;
};

/// The head size is a multiple of Preferred. Where no such twin lies inside the tolerances the
/// search halves the multiple, never below AtLeast: a KV cache moves in steps of kv heads times it.
template <std::int64_t Preferred = 4, std::int64_t AtLeast = Preferred>
struct head_size_multiple {
  static_assert(AtLeast >= 1 && Preferred >= AtLeast,
                "recipe::head_size_multiple<Preferred, AtLeast>: needs Preferred >= AtLeast >= 1");
  static constexpr std::int64_t value = Preferred;
  static constexpr std::int64_t at_least = AtLeast;
};

/// The width of an expert (or of a dense feed-forward) is a multiple of Preferred. Where no such
/// twin lies inside the tolerances, and the multiple is coarse beside the Baseline's width, the
/// search halves it, never below AtLeast: only very small models need that.
template <std::int64_t Preferred = 8, std::int64_t AtLeast = Preferred>
struct expert_width_multiple {
  static_assert(AtLeast >= 1 && Preferred >= AtLeast,
                "recipe::expert_width_multiple<Preferred, AtLeast>: needs Preferred >= AtLeast >= "
                "1");
  static constexpr std::int64_t value = Preferred;
  static constexpr std::int64_t at_least = AtLeast;
};

/// The number of experts is a multiple of Preferred. Where no such twin lies inside the tolerances
/// the search halves the multiple, never below AtLeast: with few experts one step of 8 changes the
/// parameters by more than any width can mend. experts_multiple<8> alone never gives way.
template <std::int64_t Preferred = 8, std::int64_t AtLeast = Preferred>
struct experts_multiple {
  static_assert(AtLeast >= 1 && Preferred >= AtLeast,
                "recipe::experts_multiple<Preferred, AtLeast>: needs Preferred >= AtLeast >= 1");
  static constexpr std::int64_t value = Preferred;
  static constexpr std::int64_t at_least = AtLeast;
};

/// How far the ratio of expert width to hidden size may move from the Baseline's.
template <std::int64_t Permille = 150>
struct width_band_permille {
  static_assert(Permille >= 0 && Permille < 1000,
                "recipe::width_band_permille<Permille>: the band must be 0 to 999 permille");
  static constexpr std::int64_t value = Permille;
};

/// How far the ratio of query width to hidden size may move from the Baseline's, but only where no
/// twin with exactly the same ratio lies inside the tolerances; a quarter of the band is tried
/// before all of it. Multi-head attention needs it: there the cache sets the query width.
template <std::int64_t Permille = 200>
struct query_band_permille {
  static_assert(Permille >= 0 && Permille < 1000,
                "recipe::query_band_permille<Permille>: the band must be 0 to 999 permille");
  static constexpr std::int64_t value = Permille;
};

}  // namespace recipe

namespace detail {
// A part belongs to a kind, and a kind is named by its default part.
template <class Part>
struct part_kind {
  using type = void;
};
template <std::int64_t Value>
struct part_kind<recipe::span_percent<Value>> {
  using type = recipe::span_percent<>;
};
template <std::int64_t Value>
struct part_kind<recipe::visits<Value>> {
  using type = recipe::visits<>;
};
template <std::int64_t Value>
struct part_kind<recipe::depth<Value>> {
  using type = recipe::depth<>;
};
template <std::int64_t Value>
struct part_kind<recipe::hidden_multiple<Value>> {
  using type = recipe::hidden_multiple<>;
};
template <std::int64_t Preferred, std::int64_t AtLeast>
struct part_kind<recipe::head_size_multiple<Preferred, AtLeast>> {
  using type = recipe::head_size_multiple<4, 2>;
};
template <std::int64_t Preferred, std::int64_t AtLeast>
struct part_kind<recipe::expert_width_multiple<Preferred, AtLeast>> {
  using type = recipe::expert_width_multiple<8, 2>;
};
template <std::int64_t Preferred, std::int64_t AtLeast>
struct part_kind<recipe::experts_multiple<Preferred, AtLeast>> {
  using type = recipe::experts_multiple<8, 1>;
};
template <std::int64_t Value>
struct part_kind<recipe::width_band_permille<Value>> {
  using type = recipe::width_band_permille<>;
};
template <std::int64_t Value>
struct part_kind<recipe::query_band_permille<Value>> {
  using type = recipe::query_band_permille<>;
};
template <residual_scale_option T>
struct part_kind<T> {
  using type = residual_scale::inverse_visits;
};

template <class Kind, class... Parts>
inline constexpr int parts_of_kind = (0 + ... +
                                      int{std::same_as<typename part_kind<Parts>::type, Kind>});

// The part of a kind among Parts, or the default that names the kind.
template <class Kind, class... Parts>
struct part_of {
  using type = Kind;
};
template <class Kind, class First, class... Rest>
struct part_of<Kind, First, Rest...>
    : std::conditional_t<std::same_as<typename part_kind<First>::type, Kind>,
                         std::type_identity<First>, part_of<Kind, Rest...>> {};

template <std::int64_t Prelude, std::int64_t Span, std::int64_t Visits, std::int64_t Coda>
consteval auto looped_stack() {
  if constexpr (Visits == 1)
    return std::type_identity<stack<plain<Prelude + Span + Coda>>>{};
  else if constexpr (Prelude == 0 && Coda == 0)
    return std::type_identity<stack<looped<Span, Visits>>>{};
  else if constexpr (Prelude == 0)
    return std::type_identity<stack<looped<Span, Visits>, plain<Coda>>>{};
  else
    return std::type_identity<stack<plain<Prelude>, looped<Span, Visits>, plain<Coda>>>{};
}
}  // namespace detail

namespace recipe {

/// A twin whose middle layers are executed several times. Parts: span_percent, visits, depth,
/// hidden_multiple, head_size_multiple, expert_width_multiple, experts_multiple,
/// width_band_permille, query_band_permille, and residual_scale::inverse_visits or ::one.
template <class... Parts>
struct looped_middle {
  static_assert((!std::is_void_v<typename detail::part_kind<Parts>::type> && ...),
                "recipe::looped_middle<Parts...>: a part must be one of span_percent, visits, "
                "depth, hidden_multiple, head_size_multiple, expert_width_multiple, "
                "experts_multiple, width_band_permille, query_band_permille or residual_scale::");
  static_assert(((detail::parts_of_kind<typename detail::part_kind<Parts>::type, Parts...> == 1) &&
                 ...),
                "recipe::looped_middle<Parts...>: the same kind of part is named twice; keep one");

  template <class Kind>
  using part = typename detail::part_of<Kind, Parts...>::type;

  static constexpr std::int64_t span_percent = part<recipe::span_percent<>>::value;
  static constexpr std::int64_t visits = part<recipe::visits<>>::value;
  static constexpr std::int64_t hidden_multiple = part<recipe::hidden_multiple<>>::value;
  static constexpr std::int64_t head_size_multiple = part<recipe::head_size_multiple<4, 2>>::value;
  static constexpr std::int64_t head_size_multiple_at_least =
      part<recipe::head_size_multiple<4, 2>>::at_least;
  static constexpr std::int64_t expert_width_multiple =
      part<recipe::expert_width_multiple<8, 2>>::value;
  static constexpr std::int64_t expert_width_multiple_at_least =
      part<recipe::expert_width_multiple<8, 2>>::at_least;
  static constexpr std::int64_t experts_multiple = part<recipe::experts_multiple<8, 1>>::value;
  static constexpr std::int64_t experts_multiple_at_least =
      part<recipe::experts_multiple<8, 1>>::at_least;
  static constexpr std::int64_t width_band_permille = part<recipe::width_band_permille<>>::value;
  static constexpr std::int64_t query_band_permille = part<recipe::query_band_permille<>>::value;
  using residual = part<residual_scale::inverse_visits>;

  /// Physical layers of the twin of a Baseline of BaselineLayers.
  static consteval std::int64_t layers(std::int64_t baseline_layers) {
    return part<recipe::depth<>>::value == 0 ? baseline_layers : part<recipe::depth<>>::value;
  }
  /// Layers of the span among `physical` ones; 49, not 50, rounds a half downwards.
  static consteval std::int64_t span_layers(std::int64_t physical) {
    const std::int64_t rounded = (physical * span_percent + 49) / 100;
    return rounded < 1 ? 1 : rounded;
  }
  static consteval std::int64_t prelude_layers(std::int64_t physical) {
    return (physical - span_layers(physical)) / 2;
  }

  /// The stack of the twin of a Baseline of BaselineLayers.
  template <std::int64_t BaselineLayers>
  using stack_for =
      typename decltype(detail::looped_stack<prelude_layers(layers(BaselineLayers)),
                                             span_layers(layers(BaselineLayers)), visits,
                                             layers(BaselineLayers) -
                                                 span_layers(layers(BaselineLayers)) -
                                                 prelude_layers(layers(BaselineLayers))>())::type;
};

/// The paper's: the middle half executed twice, same physical depth, residual updates halved.
using smelt = looped_middle<>;

}  // namespace recipe

namespace detail {
template <class T>
inline constexpr bool is_recipe = false;
template <class... Parts>
inline constexpr bool is_recipe<recipe::looped_middle<Parts...>> = true;
}  // namespace detail

/// A recipe the search can follow.
template <class T>
concept looped_recipe = detail::is_recipe<T>;

}  // namespace smelt
