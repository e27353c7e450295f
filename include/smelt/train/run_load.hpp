// SPDX-License-Identifier: Apache-2.0
//
// expert_load: how evenly a MoE visit used its experts, as two numbers.
//
//   ratio    largest count / mean count      1: even; E / top_k: everybody to the same experts
//   entropy  - sum p ln p,  p = count / sum  ln E: even; nats
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "smelt/model/plan.hpp"

namespace smelt {

struct expert_load {
  double ratio = 0.0;
  double entropy = 0.0;
};

/// Of one visit; all 0 where no token was counted.
inline expert_load load_of(std::span<const std::int64_t> counts) {
  std::int64_t sum = 0;
  std::int64_t most = 0;
  for (const std::int64_t count : counts) {
    sum += count;
    most = std::max(most, count);
  }
  expert_load load;
  if (sum == 0) return load;
  const auto all = static_cast<double>(sum);
  load.ratio = static_cast<double>(most) * static_cast<double>(counts.size()) / all;
  for (const std::int64_t count : counts) {
    // 0 ln 0 is 0.
    const double p = static_cast<double>(count) / all;
    if (count > 0) load.entropy -= p * std::log(p);
  }
  return load;
}

/// Calls use(load) for each visit with experts, in order of execution.
/// @param counts  [MoE visits, stride] as a trainer gives them; a layer may use fewer than stride.
template <class Use>
void each_load(const model_plan& plan, std::span<const std::int64_t> counts, std::int64_t stride,
               Use&& use) {
  std::int64_t row = 0;
  for (const visit_plan& visit : plan.visits) {
    const ffn_shape& ffn = plan.layers[static_cast<std::size_t>(visit.layer)].ffn;
    if (ffn.is_dense()) continue;
    use(load_of(counts.subspan(static_cast<std::size_t>(row++ * stride),
                               static_cast<std::size_t>(ffn.experts))));
  }
}

}  // namespace smelt
