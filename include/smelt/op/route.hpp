// SPDX-License-Identifier: Apache-2.0
//
// The router's choice: softmax over the experts, the top_k largest, and their weights.
//
//   p      = softmax(logits)                      logits [N, E], p [N, E]
//   chosen = the top_k largest of p, descending   [N, top_k], ties to the lowest index
//   w_k    = p[chosen_k] / s,  s = sum_k p[chosen_k] if renormalised, otherwise 1
//
// Under a bias b [E] (router_bias.hpp) the chosen ones are the top_k largest of logits + b instead,
// which orders as p exp(b) does, whatever the number of experts. p and w are those without b.
//
// Backward, with dp_e = dw_k / s - (sum_j dw_j w_j) / s at the chosen experts (the second term only
// if renormalised), plus the balancing loss's gradient at every expert:
//
//   dlogits_e = p_e (dp_e - sum_i p_i dp_i) + 2 z p_e lse,   lse = logsumexp(logits)
//
// The choice itself has no gradient, so a bias has none and changes none. Logits are a float32
// product of the caller, also under bf16: a rounded logit would change who is chosen. Floor: N E
// elements read and written; a few operations each. Source: paper section 1 (top-8 of 8 to 504
// experts); Switch and ST-MoE for the losses; Wang et al. 2024 (auxiliary-loss-free balancing) for
// the bias.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/host_device.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/exponential.hpp"
#include "smelt/op/lane_sum.hpp"
#include "smelt/op/row_maximum.hpp"

namespace smelt {

/// What the auxiliary losses of balance.hpp add to the router's gradient; the default adds nothing.
template <class Real>
struct router_gradient {
  const Real* dprobabilities = nullptr;  // [groups, E]: equal for all tokens of a group
  std::int64_t group_tokens = 1;         // token n belongs to group n / group_tokens
  const Real* logsumexp = nullptr;       // [N], read where z_factor is not 0
  Real z_factor = Real(0);               // coefficient of logsumexp^2 of one token
};

/// Softmax of one row in place; returns its log-sum-exp. A NaN or +Inf makes the whole row NaN.
template <class Real>
SMELT_HD Real softmax_row(Real* row, std::int64_t count) {
  const Real largest = row_maximum(row, count);
  const Real sum = lane_sum<Real>(count, [&](std::int64_t i) {
    row[i] = exponential(row[i] - largest);
    return row[i];
  });
  const Real scale = Real(1) / sum;
  for (std::int64_t j = 0; j < count; ++j) row[j] *= scale;
  return largest + std::log(sum);
}

/// What a NaN ranks as. A constant: device code may not call the function that makes it.
template <class Real>
inline constexpr Real below_every_number = -std::numeric_limits<Real>::infinity();

/// The top_k largest of a row, descending, ties to the lowest index; NaN ranks below everything.
/// Whatever the row holds, the indices are top_k distinct ones in [0, count). Also writes their
/// values. Insertion into a sorted list: after the first few elements almost none passes the test
/// against the list's last value, so a row costs little more than reading it.
template <class Real>
SMELT_HD void top_k_of_row(const Real* row, std::int64_t count, std::int64_t top_k,
                           std::int32_t* chosen, Real* values) {
  constexpr Real lowest = below_every_number<Real>;
  // The new element wanders up from the list's end by exchanges without a branch: where it stops is
  // a coin toss that a processor cannot foresee. Only a strictly smaller value gives way, as an
  // equal one came earlier and has the lower index.
  const auto insert = [&](Real value, std::int64_t index, std::int64_t last) {
    std::int32_t expert = static_cast<std::int32_t>(index);
    for (std::int64_t place = last; place > 0; --place) {
      const Real above = values[place - 1];
      const std::int32_t expert_above = chosen[place - 1];
      const bool gives_way = above < value;
      values[place] = gives_way ? above : value;
      chosen[place] = gives_way ? expert_above : expert;
      value = gives_way ? value : above;
      expert = gives_way ? expert : expert_above;
    }
    values[0] = value;
    chosen[0] = expert;
  };
  for (std::int64_t i = 0; i < top_k; ++i) insert(row[i] == row[i] ? row[i] : lowest, i, i);
  std::int64_t i = top_k;
  constexpr int block = 16;  // compared with the threshold together
  for (; i + block <= count; i += block) {
    const Real threshold = values[top_k - 1];
    int passes = 0;
    for (int l = 0; l < block; ++l) passes |= row[i + l] > threshold ? 1 : 0;
    if (passes == 0) continue;
    for (int l = 0; l < block; ++l)
      if (row[i + l] > values[top_k - 1]) insert(row[i + l], i + l, top_k - 1);
  }
  for (; i < count; ++i)
    if (row[i] > values[top_k - 1]) insert(row[i], i, top_k - 1);
  // Once more from the row, so that a chosen NaN shows as NaN.
  for (std::int64_t k = 0; k < top_k; ++k) values[k] = row[chosen[k]];
}

/// Weights of one token from the probabilities of its chosen experts, in place.
template <class Real>
SMELT_HD void renormalize_row(Real* weights, std::int64_t top_k) {
  Real sum = Real(0);
  for (std::int64_t k = 0; k < top_k; ++k) sum += weights[k];
  const Real scale = Real(1) / sum;
  for (std::int64_t k = 0; k < top_k; ++k) weights[k] *= scale;
}

/// dp of a chosen expert: mean is sum_j dw_j w_j and scale 1 / s, or 0 and 1 where not
/// renormalised.
template <class Real>
SMELT_HD Real route_choice_gradient(Real dweight, Real mean, Real scale) {
  return (dweight - mean) * scale;
}

/// Gradient of one logit but for the share of a choice; dbalance is 0 without a balancing loss.
template <class Real>
SMELT_HD Real route_logit_gradient(Real probability, Real dbalance, Real inner, Real z) {
  return probability * (dbalance - inner + z);
}

/// Gradient of one token's logits. dbalance [E] may be null; z = 2 * z_factor * logsumexp.
template <class Real>
SMELT_HD void route_backward_row(const Real* probabilities, std::int64_t experts,
                                 const std::int32_t* chosen, const Real* weights,
                                 const Real* dweights, std::int64_t top_k, bool renormalize,
                                 const Real* dbalance, Real z, Real* dlogits) {
  Real mean = Real(0);
  Real scale = Real(1);
  if (renormalize) {
    Real sum = Real(0);
    for (std::int64_t k = 0; k < top_k; ++k) {
      mean += dweights[k] * weights[k];
      sum += probabilities[chosen[k]];
    }
    scale = Real(1) / sum;
  }
  Real inner = Real(0);  // sum_i p_i dp_i
  for (std::int64_t k = 0; k < top_k; ++k)
    inner += probabilities[chosen[k]] * route_choice_gradient(dweights[k], mean, scale);
  if (dbalance != nullptr) {
    inner +=
        lane_sum<Real>(experts, [&](std::int64_t e) { return probabilities[e] * dbalance[e]; });
    for (std::int64_t e = 0; e < experts; ++e)
      dlogits[e] = route_logit_gradient(probabilities[e], dbalance[e], inner, z);
  } else {
    for (std::int64_t e = 0; e < experts; ++e)
      dlogits[e] = route_logit_gradient(probabilities[e], Real(0), inner, z);
  }
  for (std::int64_t k = 0; k < top_k; ++k)
    dlogits[chosen[k]] +=
        probabilities[chosen[k]] * route_choice_gradient(dweights[k], mean, scale);
}

inline namespace host_backend {

/// Tokens that one thread routes at a time.
inline constexpr std::int64_t route_block_tokens = 32;

namespace host_detail {
struct route_scores;
}

/// logits [N, E] -> probabilities [N, E] (may be the same memory), chosen and weights [N, top_k],
/// logsumexp [N]. Rows of NaN or Inf still choose top_k distinct experts; their weights are NaN.
/// choice_bias [E] or null: chosen descends by logit + bias, where two that round to the same score
/// tie, and so do NaN and -Inf.
template <class Compute>
void route_forward(const host<Compute>& run, matrix_view<const typename host<Compute>::real> logits,
                   std::int64_t top_k, bool renormalize,
                   matrix_view<typename host<Compute>::real> probabilities, std::int32_t* chosen,
                   typename host<Compute>::real* weights, typename host<Compute>::real* logsumexp,
                   const typename host<Compute>::real* choice_bias = nullptr) {
  using Real = typename host<Compute>::real;
  const std::int64_t experts = logits.columns;
  const bool biased = choice_bias != nullptr;
  const worker_scratch<Real, host_detail::route_scores> scratch(run.threads(),
                                                                biased ? experts : 0);
  for_each_block(run, logits.rows, route_block_tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const Real* from = logits.row(n);
      Real* row = probabilities.row(n);
      std::int32_t* choices = chosen + n * top_k;
      Real* of_choices = weights + n * top_k;
      if (biased) {  // before the softmax, which may overwrite the logits
        Real* scores = scratch.mine();
        for (std::int64_t e = 0; e < experts; ++e) scores[e] = from[e] + choice_bias[e];
        top_k_of_row<Real>(scores, experts, top_k, choices, of_choices);
      }
      if (row != from) std::copy_n(from, experts, row);
      logsumexp[n] = softmax_row(row, experts);
      if (biased)
        for (std::int64_t k = 0; k < top_k; ++k) of_choices[k] = row[choices[k]];
      else
        top_k_of_row<Real>(row, experts, top_k, choices, of_choices);
      if (renormalize) renormalize_row(of_choices, top_k);
    }
  });
}

/// dweights [N, top_k] and the auxiliary losses' share -> dlogits [N, E], overwritten. dlogits must
/// not be the memory of probabilities.
template <class Compute>
void route_backward(const host<Compute>& run,
                    matrix_view<const typename host<Compute>::real> probabilities,
                    const std::int32_t* chosen, const typename host<Compute>::real* weights,
                    std::int64_t top_k, bool renormalize,
                    const typename host<Compute>::real* dweights,
                    const router_gradient<typename host<Compute>::real>& auxiliary,
                    matrix_view<typename host<Compute>::real> dlogits) {
  using Real = typename host<Compute>::real;
  const std::int64_t experts = probabilities.columns;
  for_each_block(
      run, probabilities.rows, route_block_tokens, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          const Real* dbalance = auxiliary.dprobabilities;
          if (dbalance != nullptr) dbalance += n / auxiliary.group_tokens * experts;
          const Real z = auxiliary.z_factor == Real(0)
                             ? Real(0)
                             : Real(2) * auxiliary.z_factor * auxiliary.logsumexp[n];
          route_backward_row(probabilities.row(n), experts, chosen + n * top_k, weights + n * top_k,
                             dweights + n * top_k, top_k, renormalize, dbalance, z, dlogits.row(n));
        }
      });
}

}  // namespace host_backend
}  // namespace smelt
