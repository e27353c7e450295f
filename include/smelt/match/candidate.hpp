// SPDX-License-Identifier: Apache-2.0
//
// One point of the search: the widths of a possible twin, its three budgets, and the order that
// says which of two twins is better.
//
//   1. the smaller worst mismatch, each budget measured in its tolerance
//   2. the expert width / hidden nearer to the Baseline's
//   3. the smaller mismatch of FLOPs and parameters
//   4. the number of kv heads nearer to the Baseline's, the larger head, hidden, width; fewer
//      experts: these only make the order total, so that every compiler finds the same twin
//
// The second rule decides often: the KV cache moves in coarse steps (kv heads * head size), so many
// widths share one worst mismatch.
#pragma once

#include <cstdint>

#include "smelt/match/budget_matched.hpp"

namespace smelt {

namespace detail {
// Widths of a twin, and how far it is off. `experts` is 0 where the feed-forward is dense.
struct candidate {
  std::int64_t hidden = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t width = 0;
  std::int64_t shared_width = 0;
  std::int64_t experts = 0;

  mismatch off{};
  std::int64_t ratio_millionths = 0;  // distance of width / hidden from the Baseline's
  std::int64_t kv_heads_changed = 0;

  constexpr bool exists() const { return hidden > 0; }
  constexpr bool inside() const { return exists() && off.worst() <= 1'000'000; }
};

constexpr std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}
constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
constexpr std::int64_t magnitude(std::int64_t a) {
  return a < 0 ? -a : a;
}
constexpr std::int64_t ceil_to(std::int64_t a, std::int64_t multiple) {
  return (a + multiple - 1) / multiple * multiple;
}

// `left` is the better twin. `right` may be the empty candidate, which loses to any.
constexpr bool better(const candidate& left, const candidate& right) {
  if (!right.exists()) return true;
  if (left.off.worst() != right.off.worst()) return left.off.worst() < right.off.worst();
  if (left.ratio_millionths != right.ratio_millionths)
    return left.ratio_millionths < right.ratio_millionths;
  const std::int64_t left_rest = larger(left.off.flops, left.off.parameters);
  const std::int64_t right_rest = larger(right.off.flops, right.off.parameters);
  if (left_rest != right_rest) return left_rest < right_rest;
  if (left.kv_heads_changed != right.kv_heads_changed)
    return left.kv_heads_changed < right.kv_heads_changed;
  if (left.head_dim != right.head_dim) return left.head_dim > right.head_dim;
  if (left.hidden != right.hidden) return left.hidden > right.hidden;
  if (left.width != right.width) return left.width > right.width;
  if (left.kv_heads != right.kv_heads) return left.kv_heads > right.kv_heads;
  return left.experts < right.experts;
}
}  // namespace detail

}  // namespace smelt
