// SPDX-License-Identifier: Apache-2.0
//
// The router's two auxiliary losses, for one visit of one layer.
//
//   load balance of a group of G tokens:  B_g = E sum_e fraction_e mean_e
//     fraction_e = assignments to e / (G top_k)      (no gradient)
//     mean_e     = mean over the group of p[n, e]
//   Convention: fractions sum to 1, so B_g is 1 at balance and E when one expert gets all; the
//   convention whose fractions sum to top_k gives top_k times as much.
//   router z:  Z = mean over tokens of logsumexp^2
//
// Groups are consecutive tokens: a sequence, or the whole batch. Groups and micro-batches are
// weighted by their tokens over total_tokens, the tokens of the whole step on all ranks, so the
// same sequences as 1 x 32 and as 32 x 1 give the same loss and gradient, and sums over
// micro-batches need no further scale.
//
//   d objective / d p[n, e] = share c_b E assignments_e / (G top_k total)   for n of the group
//   d objective / d logits  = share 2 c_z logsumexp p / total
//
// A group may also lie on several ranks, as the whole batch does in data parallelism. Its counts
// are then summed over the ranks before the loss (count_experts) and given as group_counts; the
// sums of probabilities stay each rank's own. As B_g is linear in them, the ranks' losses add up to
// that of the whole group, and each rank's gradient is exact:
//
//   a rank's part of B_g G / total = E / total sum_e fraction_e sum_n p[n, e]    over its own n
//
// A visit's share is 1 / (MoE visits), so that a looped model and its Baseline weigh them alike.
//
// Both flow through route_backward. Evaluation does not call this op, so it counts nothing.
// Source: Switch Transformer (balance), ST-MoE (z); paper section 1 leaves the loss open.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/host_device.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/route.hpp"

namespace smelt {

/// What scales the losses; the coefficients are part of the objective, never of the statistics.
struct balance_setting {
  std::int64_t group_tokens =
      1;  // tokens that balance among themselves; the last group may be short
  std::int64_t total_tokens = 1;  // tokens of the whole step: all micro-batches, all ranks
  double balance_coefficient = 0.01;
  double z_coefficient = 0.001;
  double share = 1.0;  // of the objective and of the sums that this visit carries
  // Where the one group lies on several ranks: its assignments [E], in the policy's memory, and the
  // tokens that they are of. Null: the group is in the batch.
  const std::int64_t* group_counts = nullptr;
  std::int64_t group_counts_tokens = 0;

  SMELT_HD std::int64_t groups(std::int64_t tokens) const {
    return (tokens + group_tokens - 1) / group_tokens;
  }
  /// Throws where group_counts cannot be those of a group that has all `tokens` of this batch.
  void check_group_counts(std::int64_t tokens) const {
    if (group_counts == nullptr) return;
    if (group_tokens < tokens)
      throw error("balance: expected one group where group_counts is given, found groups of " +
                  std::to_string(group_tokens) + " in a batch of " + std::to_string(tokens) +
                  " tokens; set group_tokens to all ranks' tokens, or give no group_counts");
    if (group_counts_tokens < tokens)
      throw error("balance: expected group_counts of this batch's " + std::to_string(tokens) +
                  " tokens and the other ranks', found group_counts_tokens = " +
                  std::to_string(group_counts_tokens) + "; sum both over the ranks");
  }
};

/// Sums of the step's losses, of a policy's statistic type; visits, micro-batches and ranks add up.
template <class Statistic>
struct balance_sums {
  Statistic load_balance = 0;  // 1 over a whole step in balance, whatever the coefficient
  Statistic router_z = 0;
};

inline namespace host_backend {

namespace host_detail {
struct balance_partials;

// Tokens whose probabilities are added up in one go; a group is cut into such chunks.
inline constexpr std::int64_t balance_chunk_tokens = 256;

struct expert_counts;
}  // namespace host_detail

/// counts [E] = how often chosen [tokens, top_k] names each expert, overwritten; an index that
/// names none is not counted.
template <class Compute>
void count_experts(const host<Compute>& run, const std::int32_t* chosen, std::int64_t tokens,
                   std::int64_t top_k, std::int64_t experts, std::int64_t* counts) {
  const std::int64_t assignments = tokens * top_k;
  // At most 64 chunks: their table stays small beside the assignments.
  const std::int64_t chunk = std::max<std::int64_t>(4096, (assignments + 63) / 64);
  const std::int64_t chunks = (assignments + chunk - 1) / chunk;
  auto* table = thread_scratch<std::int64_t, host_detail::expert_counts>(chunks * experts);
  for_each_block(run, assignments, chunk, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t* of_chunk = table + begin / chunk * experts;
    std::fill_n(of_chunk, experts, std::int64_t{0});
    for (std::int64_t i = begin; i < end; ++i)
      if (chosen[i] >= 0 && chosen[i] < experts) ++of_chunk[chosen[i]];
  });
  std::fill_n(counts, experts, std::int64_t{0});
  for (std::int64_t c = 0; c < chunks; ++c)
    for (std::int64_t e = 0; e < experts; ++e) counts[e] += table[c * experts + e];
}

/// The losses of one visit, and what route_backward needs for their gradient.
///   probabilities [N, E], chosen [N, top_k], logsumexp [N]: as route_forward wrote them
///   dprobabilities [groups, E]: overwritten
///   expert_counts [E]: the visit's record of assignments, added to; zero it where a step begins
///   sums: the visit's share of both losses is added, without their coefficients
/// With setting.group_counts the sums are this rank's part, and expert_counts is still its own
/// record. Throws where there is more than the one group that they are of.
template <class Compute>
void balance_forward(const host<Compute>& run,
                     matrix_view<const typename host<Compute>::real> probabilities,
                     const std::int32_t* chosen, const typename host<Compute>::real* logsumexp,
                     std::int64_t top_k, const balance_setting& setting,
                     typename host<Compute>::real* dprobabilities, std::int64_t* expert_counts,
                     balance_sums<typename host<Compute>::statistic>* sums) {
  using Real = typename host<Compute>::real;
  const std::int64_t tokens = probabilities.rows;
  const std::int64_t experts = probabilities.columns;
  setting.check_group_counts(tokens);
  const std::int64_t groups = setting.groups(tokens);
  // Chunks never cross a group: each group has the same number of chunks, some perhaps empty. A
  // group may be set larger than the batch is.
  const std::int64_t largest = std::max<std::int64_t>(1, std::min(setting.group_tokens, tokens));
  const std::int64_t chunk = std::min(largest, host_detail::balance_chunk_tokens);
  const std::int64_t group_chunks = (largest + chunk - 1) / chunk;

  // Per chunk E sums of probabilities, then E counts; both exact enough in double.
  double* partials = thread_scratch<double, host_detail::balance_partials>(
      groups * (group_chunks * 2 * experts + 1));
  double* group_losses = partials + groups * group_chunks * 2 * experts;
  for_each_block(run, groups * group_chunks, 1, [&](std::int64_t index, std::int64_t) {
    double* expert_sums = partials + index * 2 * experts;
    double* counts = expert_sums + experts;
    std::fill_n(expert_sums, 2 * experts, 0.0);
    const std::int64_t group = index / group_chunks;
    const std::int64_t first = group * setting.group_tokens + index % group_chunks * chunk;
    const std::int64_t last = std::min({first + chunk, (group + 1) * setting.group_tokens, tokens});
    for (std::int64_t n = first; n < last; ++n) {
      const Real* row = probabilities.row(n);
      for (std::int64_t e = 0; e < experts; ++e) expert_sums[e] += static_cast<double>(row[e]);
      for (std::int64_t k = 0; k < top_k; ++k) counts[chosen[n * top_k + k]] += 1.0;
    }
  });

  const double total = static_cast<double>(setting.total_tokens);
  for_each_block(run, groups, 1, [&](std::int64_t group, std::int64_t) {
    const double size =
        static_cast<double>(std::min(setting.group_tokens, tokens - group * setting.group_tokens));
    const double counted =
        setting.group_counts == nullptr ? size : static_cast<double>(setting.group_counts_tokens);
    double loss = 0.0;
    for (std::int64_t e = 0; e < experts; ++e) {
      double sum = 0.0;
      double count = 0.0;
      for (std::int64_t c = group * group_chunks; c < (group + 1) * group_chunks; ++c) {
        sum += partials[c * 2 * experts + e];
        count += partials[c * 2 * experts + experts + e];
      }
      const double assignments =
          setting.group_counts == nullptr ? count : static_cast<double>(setting.group_counts[e]);
      const double fraction = assignments / (counted * static_cast<double>(top_k));
      loss += fraction * (sum / size);
      // size / total is the group's weight, 1 / size comes from the mean.
      dprobabilities[group * experts + e] =
          static_cast<Real>(setting.share * setting.balance_coefficient *
                            static_cast<double>(experts) * fraction / total);
      // The first chunk keeps the group's counts for the record below.
      partials[group * group_chunks * 2 * experts + experts + e] = count;
    }
    group_losses[group] = static_cast<double>(experts) * loss * (size / total);
  });

  for (std::int64_t group = 0; group < groups; ++group) {
    sums->load_balance += setting.share * group_losses[group];
    const double* counts = partials + group * group_chunks * 2 * experts + experts;
    for (std::int64_t e = 0; e < experts; ++e)
      expert_counts[e] += static_cast<std::int64_t>(counts[e]);
  }
  const double squares =
      sum_over_blocks<double>(run.threads(), tokens, [&](std::int64_t begin, std::int64_t end) {
        double sum = 0.0;
        for (std::int64_t n = begin; n < end; ++n) {
          const double value = static_cast<double>(logsumexp[n]);
          sum += value * value;
        }
        return sum;
      });
  sums->router_z += setting.share * squares / total;
}

}  // namespace host_backend

/// The last argument of route_backward, from what balance_forward wrote and read.
template <class Real>
router_gradient<Real> balance_backward(const balance_setting& setting, const Real* dprobabilities,
                                       const Real* logsumexp) {
  return {dprobabilities, setting.group_tokens, logsumexp,
          static_cast<Real>(setting.share * setting.z_coefficient /
                            static_cast<double>(setting.total_tokens))};
}

}  // namespace smelt
