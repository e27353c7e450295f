// SPDX-License-Identifier: Apache-2.0
//
// matched<Baseline, Recipe>: the twin that costs what the Baseline costs, found by the compiler.
//
//   free        hidden, head size, kv heads, expert width, number of experts
//   fixed       top_k, options, share of a shared expert; the stack comes from the recipe
//   tied        query width / hidden as the Baseline's; expert width / hidden within a band of it
//   minimised   the largest of the three mismatches, each in its tolerance (order: candidate.hpp)
//
// Preferences give way in this order, and only while no twin lies inside the tolerances: the
// multiple of experts (8, 4, 2, 1), of the head size (4, 2), the ratio of query width to hidden
// (5 %, 20 %), the multiple of the expert width (8, 4, 2). Nothing outside the tolerances is ever
// returned: that is a static_assert with a near miss and its numbers.
//
//   using twin = matched<baseline, recipe::smelt>;
//   using deep = matched<baseline, recipe::looped_middle<recipe::visits<3>>, tolerance<20, 5, 20>>;
//
// A search takes some hundredths of a second of any compiler, under its default limits.
// Source: paper section 2, whose rows the search must equal or beat.
#pragma once

#include <cstdint>
#include <type_traits>

#include "smelt/arch/recipe.hpp"
#include "smelt/match/assert_matched.hpp"
#include "smelt/match/grid.hpp"

namespace smelt {

/// How far the named twin is off in one budget.
template <class Budget, class OffBy, class Tolerance>
struct near_miss {};

namespace detail {
template <architecture A>
inline constexpr bool has_one_ffn = [] {
  for (const span_shape& span : A::spans)
    if (!(span.ffn == A::spans[0].ffn)) return false;
  return true;
}();
template <architecture A>
inline constexpr bool mixture_is_matched = A::spans[0].ffn.is_dense();
template <architecture A>
inline constexpr bool dense_is_matched = !mixture_is_matched<A>;
template <class Baseline, class Recipe>
inline constexpr bool some_width_fits = false;
}  // namespace detail

/// To instantiate it is the error; its arguments are a near miss and how far it is off.
template <class Twin, class Flops, class Parameters, class KvCache>
struct no_match_found {
  static_assert(detail::mixture_is_matched<Twin>,
                "matched<Baseline, Recipe>: no twin lies inside the tolerances, a near miss is "
                "named here; give the recipe finer multiples or a wider width_band_permille, or "
                "loosen tolerance<>; where the KV cache is off, choose kv heads * head size of the "
                "Baseline so that its share of the executed layers is a whole number of heads");
  static_assert(detail::dense_is_matched<Twin>,
                "matched<Baseline, Recipe>: no twin lies inside the tolerances, a near miss is "
                "named here; a dense feed-forward moves parameters and FLOPs together, so loops "
                "cannot keep both: use moe<...>, or loosen tolerance<>");
};

/// To instantiate it is the error: layers of one Baseline have different feed-forwards.
template <class Baseline>
struct mixed_feed_forwards {
  static_assert(detail::has_one_ffn<body_of<Baseline>>,
                "matched<Baseline, Recipe>: the search scales one feed-forward, but the spans of "
                "this Baseline have different ones; write the twin by hand and check it with "
                "assert_matched<Baseline, Twin>");
};

/// To instantiate it is the error: the recipe's multiples leave no width to try.
template <class Baseline, class Recipe>
struct no_twin_to_try {
  static_assert(detail::some_width_fits<Baseline, Recipe>,
                "matched<Baseline, Recipe>: no hidden size, head size and expert width of the "
                "recipe's multiples fit this Baseline; give the recipe finer multiples "
                "(hidden_multiple, head_size_multiple, expert_width_multiple) or a wider band");
};

namespace detail {
// All numbers of a search. The twin's layers are counted by the accounting, on a stand-in body with
// the twin's stack.
template <class Baseline, class Recipe, class Tolerance, class Mask>
consteval search_space space_of() {
  using body = body_of<Baseline>;
  using twin = transformer<hidden<1>, gqa<1, 1, 2>, dense<1>,
                           typename Recipe::template stack_for<layers<body>>>;
  search_space space;
  space.hidden = body::hidden_size;
  space.attention = body::attention;
  space.ffn = body::spans[0].ffn;
  space.target = budgets_of<Baseline, Mask>;
  space.layers = layers<twin>;
  space.executed_layers = executed_layers<twin>;
  space.cached_layers = body::attention.kv_shared_by_visits ? layers<twin> : executed_layers<twin>;
  space.tokens = Mask::tokens;
  space.pairs = Mask::pairs;
  space.flops_permille = Tolerance::flops_permille;
  space.parameters_permille = Tolerance::parameters_permille;
  space.kv_permille = Tolerance::kv_permille;
  space.hidden_multiple = Recipe::hidden_multiple;
  space.head_size_multiple = Recipe::head_size_multiple;
  space.head_size_multiple_at_least = Recipe::head_size_multiple_at_least;
  space.width_multiple = Recipe::expert_width_multiple;
  space.width_multiple_at_least = Recipe::expert_width_multiple_at_least;
  space.experts_multiple = Recipe::experts_multiple;
  space.experts_multiple_at_least = Recipe::experts_multiple_at_least;
  space.width_band_permille = Recipe::width_band_permille;
  space.query_band_permille = Recipe::query_band_permille;
  return space;
}

// Options as a list; each is named only where it is not the default, so that the found type prints
// short.
template <class... Options>
struct option_list {};

template <bool Wanted, class Option>
using option_if = std::conditional_t<Wanted, option_list<Option>, option_list<>>;

template <class Hidden, class Attention, class Ffn, class Stack, class... A, class... B, class... C,
          class... D, class... E>
consteval auto body_from(option_list<A...>, option_list<B...>, option_list<C...>, option_list<D...>,
                         option_list<E...>) {
  return std::type_identity<
      transformer<Hidden, Attention, Ffn, Stack, A..., B..., C..., D..., E...>>{};
}

// A feed-forward of the Baseline's kind: 0 experts stand for a dense one.
template <std::int64_t Experts, std::int64_t TopK, std::int64_t Width, std::int64_t SharedWidth>
consteval auto ffn_from() {
  if constexpr (Experts == 0)
    return std::type_identity<dense<Width>>{};
  else if constexpr (SharedWidth == 0)
    return std::type_identity<moe<Experts, TopK, Width>>{};
  else
    return std::type_identity<moe<Experts, TopK, Width, shared<SharedWidth>>>{};
}

// The position option of a rotary base; the branch not taken must be a legal type as well.
template <std::int64_t RopeBase>
using position_from = std::conditional_t<RopeBase == 0, position::none,
                                         position::rope<(RopeBase > 1 ? RopeBase : 2)>>;

// Found::twin as a type.
template <class Body, class Recipe, class Found>
consteval auto twin_body() {
  constexpr candidate twin = Found::twin;
  constexpr attention_shape attention = Body::attention;
  using residual = typename Recipe::residual;
  return body_from<hidden<twin.hidden>, gqa<twin.query_heads, twin.kv_heads, twin.head_dim>,
                   typename decltype(ffn_from<twin.experts, Body::spans[0].ffn.top_k, twin.width,
                                              twin.shared_width>())::type,
                   typename Recipe::template stack_for<layers<Body>>>(
      std::conditional_t<attention.norm == qk_norm_kind::none, option_list<>,
                         option_list<std::conditional_t<attention.norm == qk_norm_kind::per_head,
                                                        qk_norm::per_head, qk_norm::full_width>>>{},
      option_if<attention.kv_shared_by_visits, kv_cache::shared>{},
      option_if<attention.rope_base != 10'000, position_from<attention.rope_base>>{},
      option_if<std::is_same_v<residual, residual_scale::one>, residual>{},
      option_if<!Body::router_renormalized, router::plain_softmax>{});
}

// The body that stands for a twin: itself, or in a language_model like the Baseline's.
template <class Baseline, class Body>
consteval auto clothed() {
  if constexpr (has_head<Baseline>)
    return std::type_identity<
        language_model<Body, vocabulary<Baseline::vocabulary_size>,
                       std::conditional_t<Baseline::is_tied, tied, untied>>>{};
  else
    return std::type_identity<Body>{};
}

template <class Baseline, class Twin, class Tolerance, class Mask>
using no_match = no_match_found<
    Twin,
    near_miss<flops_budget<Mask>,
              smelt::off_by_permille<detail::off_by_permille(budgets_of<Baseline, Mask>.flops,
                                                             budgets_of<Twin, Mask>.flops)>,
              tolerance_permille<Tolerance::flops_permille>>,
    near_miss<total_parameters,
              smelt::off_by_permille<detail::off_by_permille(budgets_of<Baseline, Mask>.parameters,
                                                             budgets_of<Twin, Mask>.parameters)>,
              tolerance_permille<Tolerance::parameters_permille>>,
    near_miss<kv_cache_elements_per_token,
              smelt::off_by_permille<detail::off_by_permille(budgets_of<Baseline, Mask>.kv_elements,
                                                             budgets_of<Twin, Mask>.kv_elements)>,
              tolerance_permille<Tolerance::kv_permille>>>;

// The numbers, apart from the type made of them.
template <class Baseline, class Recipe, class Tolerance, class Mask>
struct search_result {
  static constexpr candidate twin = has_one_ffn<body_of<Baseline>>
                                        ? search(space_of<Baseline, Recipe, Tolerance, Mask>())
                                        : candidate{};
};

struct twin_is_inside {};

// A twin, and what must be instantiated to say what is wrong with it.
template <class Twin, class Verdict>
struct judged {
  using twin = Twin;
  using verdict = Verdict;
};

// A twin even where the verdict is an error, so that no second error follows from its use.
template <class Baseline, class Recipe, class Tolerance, class Mask>
consteval auto judge() {
  using body = body_of<Baseline>;
  using found = search_result<Baseline, Recipe, Tolerance, Mask>;
  if constexpr (!has_one_ffn<body>) {
    return judged<body, mixed_feed_forwards<Baseline>>{};
  } else if constexpr (!found::twin.exists()) {
    return judged<body, no_twin_to_try<Baseline, Recipe>>{};
  } else {
    using twin = typename decltype(twin_body<body, Recipe, found>())::type;
    // The accounting of the finished type has the last word.
    if constexpr (budget_matched<Baseline, twin, Tolerance, Mask>)
      return judged<twin, twin_is_inside>{};
    else
      return judged<twin, no_match<Baseline, twin, Tolerance, Mask>>{};
  }
}

// The verdict is a member so that naming `type` instantiates it, at a depth of two.
template <class Baseline, class Recipe, class Tolerance, class Mask>
struct found_twin {
  using judged_twin = decltype(judge<Baseline, Recipe, Tolerance, Mask>());
  using type = typename decltype(clothed<Baseline, typename judged_twin::twin>())::type;
  typename judged_twin::verdict verdict;
};
}  // namespace detail

/// The twin of Baseline, a type that is used like one written by hand: a transformer<...>, or for a
/// language_model one with the same vocabulary and tying. Its budgets lie inside Tolerance under
/// Mask, or the program does not compile.
template <countable Baseline, looped_recipe Recipe, budget_tolerance Tolerance = tolerance<>,
          attention_mask Mask = attended<391>>
using matched = typename detail::found_twin<Baseline, Recipe, Tolerance, Mask>::type;

}  // namespace smelt
