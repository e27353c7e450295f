// SPDX-License-Identifier: Apache-2.0
//
// assert_matched<Baseline, Other>: the loud form of budget_matched, for declarations.
//
//   static_assert(assert_matched<baseline, looped_>);
//
// Where a budget is off, the error names one class template per budget, whose arguments are the
// measured numbers and whose static_assert is the remedy:
//
//   budget_mismatch<training_flops_per_token, baseline_value<1329463296>, other_value<...>,
//                   off_by_permille<210>, tolerance_permille<40>>
//
// C++20 has no computed message, and concepts, plain comparisons and consteval throws each lose
// the numbers on one of g++, clang and nvcc; template arguments survive on all of them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "smelt/match/budget_matched.hpp"

namespace smelt {

struct training_flops_per_token {};
struct training_flops_per_sequence {};  // under masks of more than one token
struct total_parameters {};
struct kv_cache_elements_per_token {};

template <std::int64_t Value>
struct baseline_value {};
template <std::int64_t Value>
struct other_value {};
/// Of the Baseline's value; negative where the other has less; rounded away from zero.
template <std::int64_t Permille>
struct off_by_permille {};
template <std::int64_t Permille>
struct tolerance_permille {};

namespace detail {
template <class Budget>
inline constexpr bool flops_agree = !std::is_same_v<Budget, training_flops_per_token> &&
                                    !std::is_same_v<Budget, training_flops_per_sequence>;
template <class Budget>
inline constexpr bool parameters_agree = !std::is_same_v<Budget, total_parameters>;
template <class Budget>
inline constexpr bool kv_caches_agree = !std::is_same_v<Budget, kv_cache_elements_per_token>;
}  // namespace detail

/// To instantiate it is the error; its arguments are what was measured.
template <class Budget, class BaselineValue, class OtherValue, class OffBy, class Tolerance>
struct budget_mismatch {
  static_assert(detail::flops_agree<Budget>,
                "training FLOPs do not match: a narrower hidden size or expert width lowers them, "
                "a wider one raises them; matched<Baseline, recipe::smelt> searches for a twin");
  static_assert(detail::parameters_agree<Budget>,
                "parameters do not match: change the number of experts, which moves parameters and "
                "hardly FLOPs; matched<Baseline, recipe::smelt> searches for a twin");
  static_assert(detail::kv_caches_agree<Budget>,
                "KV caches do not match: change kv heads * head size, or choose kv_cache::shared "
                "(one cache for all visits); matched<Baseline, recipe::smelt> searches for a twin");
};

namespace detail {
template <class Budget>
struct budgets_agree {};

template <class Budget, std::int64_t Baseline, std::int64_t Other, std::int64_t Permille>
using verdict = std::conditional_t<
    within_permille(Baseline, Other, Permille), budgets_agree<Budget>,
    budget_mismatch<Budget, baseline_value<Baseline>, other_value<Other>,
                    smelt::off_by_permille<detail::off_by_permille(Baseline, Other)>,
                    tolerance_permille<Permille>>>;

template <class Mask>
using flops_budget =
    std::conditional_t<Mask::tokens == 1, training_flops_per_token, training_flops_per_sequence>;

// As members all three are instantiated, so every compiler reports every budget that is off.
template <class Baseline, class Other, class Tolerance, class Mask>
struct matched_pair {
  static constexpr budgets left = budgets_of<Baseline, Mask>;
  static constexpr budgets right = budgets_of<Other, Mask>;
  verdict<flops_budget<Mask>, left.flops, right.flops, Tolerance::flops_permille> flops;
  verdict<total_parameters, left.parameters, right.parameters, Tolerance::parameters_permille>
      parameters;
  verdict<kv_cache_elements_per_token, left.kv_elements, right.kv_elements, Tolerance::kv_permille>
      kv_elements;
  static constexpr bool value = true;
};
}  // namespace detail

/// True, or an error for each budget that is off.
template <countable Baseline, countable Other, budget_tolerance Tolerance = tolerance<>,
          attention_mask Mask = attended<391>>
inline constexpr bool assert_matched =
    detail::matched_pair<Baseline, Other, Tolerance, Mask>::value;

}  // namespace smelt
