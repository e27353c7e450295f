// SPDX-License-Identifier: Apache-2.0
//
// Tolerances of a budget match, and the integer arithmetic that judges them.
//
//   |other - baseline| * 1000 <= permille * baseline          inside, boundary included
//
// Exact: the products are formed in 128 bit, so neither rounding nor overflow can tip a verdict.
// Source: paper section 2 (largest mismatch over the sparse cells: FLOPs 3.9 %, parameters 1.0 %,
// KV cache 3.6 %).
#pragma once

#include <concepts>
#include <cstdint>

namespace smelt {

/// How far the other architecture may lie from the Baseline, in permille of the Baseline's value:
/// training FLOPs, parameters, KV elements. 0 demands equality.
template <std::int64_t FlopsPermille = 40, std::int64_t ParametersPermille = 10,
          std::int64_t KvPermille = 40>
struct tolerance {
  static_assert(FlopsPermille >= 0 && FlopsPermille <= 1000 && ParametersPermille >= 0 &&
                    ParametersPermille <= 1000 && KvPermille >= 0 && KvPermille <= 1000,
                "tolerance<FlopsPermille, ParametersPermille, KvPermille>: a tolerance must be 0 "
                "to 1000 permille (40 permille is 4 percent)");
  static constexpr std::int64_t flops_permille = FlopsPermille;
  static constexpr std::int64_t parameters_permille = ParametersPermille;
  static constexpr std::int64_t kv_permille = KvPermille;
};

template <class T>
concept budget_tolerance = requires {
  { T::flops_permille } -> std::convertible_to<std::int64_t>;
  { T::parameters_permille } -> std::convertible_to<std::int64_t>;
  { T::kv_permille } -> std::convertible_to<std::int64_t>;
};

namespace detail {
__extension__ typedef __int128 wide_integer;  // 63-bit counts times 1e9 stay inside

constexpr wide_integer distance(std::int64_t baseline, std::int64_t other) {
  const wide_integer difference = wide_integer{other} - wide_integer{baseline};
  return difference < 0 ? -difference : difference;
}

constexpr bool within_permille(std::int64_t baseline, std::int64_t other, std::int64_t permille) {
  return distance(baseline, other) * 1000 <= wide_integer{permille} * baseline;
}

// Signed, and rounded away from zero: 40.1 permille must not read as the 40 that is allowed.
constexpr std::int64_t off_by_permille(std::int64_t baseline, std::int64_t other) {
  const wide_integer size = (distance(baseline, other) * 1000 + (baseline - 1)) / baseline;
  const wide_integer most = INT64_MAX;
  const auto capped = static_cast<std::int64_t>(size < most ? size : most);
  return other < baseline ? -capped : capped;
}

// The mismatch in millionths of its tolerance, rounded up: at most 1,000,000 exactly where
// within_permille holds. Integers, so that every compiler finds the same optimum.
constexpr std::int64_t mismatch_millionths(std::int64_t baseline, std::int64_t other,
                                           std::int64_t permille) {
  constexpr std::int64_t most = INT64_MAX / 4;
  if (baseline == other) return 0;
  if (permille == 0) return most;
  const wide_integer unit = wide_integer{permille} * baseline;
  const wide_integer parts = (distance(baseline, other) * 1'000'000'000 + (unit - 1)) / unit;
  return parts < most ? static_cast<std::int64_t>(parts) : most;
}

// The other way round: no value further than this from the baseline has so small a mismatch.
constexpr std::int64_t allowance(std::int64_t baseline, std::int64_t permille,
                                 std::int64_t millionths) {
  constexpr std::int64_t most = INT64_MAX / 4;
  const wide_integer tenth = wide_integer{permille} * baseline / 1000 + 1;
  const wide_integer distance = tenth * millionths / 1'000'000 + 1;
  return distance < most ? static_cast<std::int64_t>(distance) : most;
}
}  // namespace detail

}  // namespace smelt
