// SPDX-License-Identifier: Apache-2.0
//
// The bias on a router's choice, moved once per step so that experts get equally many tokens, with
// no term in the loss:
//
//   b_e += rate sign(sum_i count_i / E - count_e)      counts [E], b [E]
//
// An expert that got less than its share is chosen a little sooner in the next step. The counts are
// those of the whole step: all its micro-batches, and on all ranks, which so keep the same bias.
// Weights and gradients of the chosen experts know nothing of b (route.hpp). It is part of a
// model's state, kept in the real type whatever products run in: a rate of 0.001 is lost beside 1
// in bf16.
// Floor: 12 E bytes. Source: Wang et al. 2024, auxiliary-loss-free load balancing.
#pragma once

#include <cstdint>
#include <numeric>

#include "smelt/exec/host_device.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/adamw.hpp"

namespace smelt {

/// The bias of one expert after a step in which it got `count` of `total` assignments. In integers:
/// who got exactly the mean stays where it is.
template <class Real>
SMELT_HD Real router_bias_element(Real bias, std::int64_t count, std::int64_t total,
                                  std::int64_t experts, Real rate) {
  const std::int64_t share = count * experts;
  return share < total ? bias + rate : share > total ? bias - rate : bias;
}

inline namespace host_backend {

/// Moves bias [E] by `rate` towards balance of counts [E], once per step. Does nothing where the
/// step's loss is not finite, as adamw_update does, or where no token was counted.
template <class Compute>
void update_router_bias(const host<Compute>&, const std::int64_t* counts, std::int64_t experts,
                        double rate, const typename host<Compute>::statistic* loss_sum,
                        real_of<Compute>* bias) {
  using real = real_of<Compute>;
  if (!step_is_finite(*loss_sum, *loss_sum)) return;
  const std::int64_t total = std::accumulate(counts, counts + experts, std::int64_t{0});
  for (std::int64_t e = 0; e < experts; ++e)
    bias[e] = router_bias_element(bias[e], counts[e], total, experts, static_cast<real>(rate));
}

}  // namespace host_backend
}  // namespace smelt
