// SPDX-License-Identifier: Apache-2.0
//
// budget_matched<Baseline, Other>: do two architectures cost the same?
//
//   training FLOPs per token    parameters    KV elements per token
//
// each within its tolerance of the Baseline's value (so the order of the two matters at the edge).
// Bodies are compared: of a language_model, embedding and head stay out, as in the paper.
// The concept is quiet, for overloads and static_assert; assert_matched says what is off.
// Source: paper sections 2 and 3.
#pragma once

#include <cstdint>

#include "smelt/budget/flops.hpp"
#include "smelt/budget/kv_cache.hpp"
#include "smelt/budget/parameters.hpp"
#include "smelt/match/tolerance.hpp"

namespace smelt {

/// The three budgets of a body. FLOPs are training FLOPs of one sequence of a mask, which is one
/// token under attended<N>; parameters are non-embedding; KV elements are per token.
struct budgets {
  std::int64_t flops = 0;
  std::int64_t parameters = 0;
  std::int64_t kv_elements = 0;
  constexpr bool operator==(const budgets&) const = default;
};

/// Mismatch of the three budgets, each in millionths of its tolerance, rounded up: 1'000'000 is
/// the boundary, and inside.
struct mismatch {
  std::int64_t flops = 0;
  std::int64_t parameters = 0;
  std::int64_t kv_elements = 0;

  constexpr std::int64_t worst() const {
    const std::int64_t larger = flops > parameters ? flops : parameters;
    return larger > kv_elements ? larger : kv_elements;
  }
  constexpr bool operator==(const mismatch&) const = default;
};

/// FLOPs per sequence, not per token, because they are whole numbers under every mask.
template <countable A, attention_mask Mask = attended<391>>
inline constexpr budgets budgets_of{flops_per_sequence<body_of<A>, Mask>, parameters<body_of<A>>,
                                    kv_elements_per_token<body_of<A>>};

/// How tight a match is.
template <countable Baseline, countable Other, budget_tolerance Tolerance = tolerance<>,
          attention_mask Mask = attended<391>>
inline constexpr mismatch mismatch_of{
    detail::mismatch_millionths(budgets_of<Baseline, Mask>.flops, budgets_of<Other, Mask>.flops,
                                Tolerance::flops_permille),
    detail::mismatch_millionths(budgets_of<Baseline, Mask>.parameters,
                                budgets_of<Other, Mask>.parameters, Tolerance::parameters_permille),
    detail::mismatch_millionths(budgets_of<Baseline, Mask>.kv_elements,
                                budgets_of<Other, Mask>.kv_elements, Tolerance::kv_permille)};

namespace detail {
template <class Baseline, class Other, class Tolerance, class Mask>
inline constexpr bool flops_match = within_permille(budgets_of<Baseline, Mask>.flops,
                                                    budgets_of<Other, Mask>.flops,
                                                    Tolerance::flops_permille);
template <class Baseline, class Other, class Tolerance>
inline constexpr bool parameters_match = within_permille(parameters<body_of<Baseline>>,
                                                         parameters<body_of<Other>>,
                                                         Tolerance::parameters_permille);
template <class Baseline, class Other, class Tolerance>
inline constexpr bool kv_match = within_permille(kv_elements_per_token<body_of<Baseline>>,
                                                 kv_elements_per_token<body_of<Other>>,
                                                 Tolerance::kv_permille);
}  // namespace detail

/// Other costs what Baseline costs. False, not an error, for types that are no architectures.
template <class Baseline, class Other, class Tolerance = tolerance<>, class Mask = attended<391>>
concept budget_matched = countable<Baseline> && countable<Other> && budget_tolerance<Tolerance> &&
    attention_mask<Mask> && detail::flops_match<Baseline, Other, Tolerance, Mask> &&
    detail::parameters_match<Baseline, Other, Tolerance> &&
    detail::kv_match<Baseline, Other, Tolerance>;

}  // namespace smelt
