// SPDX-License-Identifier: Apache-2.0
//
// What a printed figure says about the value behind it: rounds_to(value, .207, 3) holds when the
// value, rounded to three decimals, prints as .207.
#pragma once

#include <cstdint>

#include "smelt/budget/flops.hpp"
#include "smelt/budget/kv_cache.hpp"
#include "smelt/budget/parameters.hpp"

namespace printed {

/// True when `value` rounds to `figure` at `decimals` decimals. A value on the boundary passes
/// either way, as authors differ in how they round a half.
consteval bool rounds_to(double value, double figure, int decimals) {
  double half_unit = 0.5;
  for (int decimal = 0; decimal < decimals; ++decimal) half_unit /= 10.0;
  const double difference = value < figure ? figure - value : value - figure;
  return difference <= half_unit * (1.0 + 1e-9);
}

/// True when `value` lies within `relative` (a fraction) of `figure`.
consteval bool within(double value, double figure, double relative) {
  const double difference = value < figure ? figure - value : value - figure;
  return difference <= relative * figure;
}

static_assert(rounds_to(0.2074, .207, 3) && !rounds_to(0.2076, .207, 3));
static_assert(rounds_to(10.096, 10.10, 2) && !rounds_to(10.094, 10.10, 2));
static_assert(within(1.0009, 1.0, 0.001) && !within(0.9989, 1.0, 0.001));

/// The paper's documents: a query attends 391 positions on average.
using documents = smelt::attended<391>;

template <class A>
inline constexpr double parameters_billion = static_cast<double>(smelt::parameters<A>) / 1e9;
template <class A>
inline constexpr double active_billion = static_cast<double>(smelt::active_parameters<A>) / 1e9;
template <class A>
inline constexpr double gigaflops_per_token =
    static_cast<double>(smelt::flops_per_token<A, documents>) / 1e9;

/// Other over Reference.
template <class Reference, class Other>
inline constexpr double flops_ratio =
    static_cast<double>(smelt::flops_per_token<Other, documents>) /
    static_cast<double>(smelt::flops_per_token<Reference, documents>);
template <class Reference, class Other>
inline constexpr double parameters_ratio = static_cast<double>(smelt::parameters<Other>) /
                                           static_cast<double>(smelt::parameters<Reference>);
template <class Reference, class Other>
inline constexpr double kv_ratio = static_cast<double>(smelt::kv_elements_per_token<Other>) /
                                   static_cast<double>(smelt::kv_elements_per_token<Reference>);

}  // namespace printed
