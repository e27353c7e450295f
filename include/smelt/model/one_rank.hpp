// SPDX-License-Identifier: Apache-2.0
//
// one_rank: what forward and backward ask of the ranks they run on, answered by a rank that is
// alone: all experts are here, and nobody waits for a gradient.
//
// A pass knows no other rank. It takes a team, an object with these four members, and tells it or
// asks it; train/rank_team.hpp has the team of several ranks. Every rank asks in the same order.
#pragma once

#include <cstdint>

#include "smelt/model/state.hpp"
#include "smelt/op/balance.hpp"
#include "smelt/op/expert_ffn.hpp"

namespace smelt {

namespace detail {
/// The experts of a visit's layer, as their op takes them.
template <class Policy>
expert_ffn_shape expert_shape(const model_state<Policy>& state, const visit_plan& visit) {
  const ffn_shape& ffn = state.plan.layer_of(visit).ffn;
  return {ffn.experts, ffn.top_k, state.plan.hidden, ffn.width};
}
}  // namespace detail

struct one_rank {
  /// Gradients [begin, end) of the arena are complete: nothing will add to them in this pass.
  template <class Policy>
  void complete(const Policy&, std::int64_t, std::int64_t) const {}

  /// x [N, H] through the experts that each token chose -> slots [N top_k, H], in slot order.
  template <class Policy>
  void experts_forward(const Policy& run, model_state<Policy>& state, const visit_plan& visit,
                       const matrix_view<const typename Policy::compute>& x,
                       const dispatch_plan& dispatch,
                       const visit_activations<typename Policy::compute>& a,
                       const matrix_view<typename Policy::compute>& slots) const {
    const layer_plan& layer = state.plan.layer_of(visit);
    expert_ffn_forward(run, detail::expert_shape(state, visit), x, dispatch, a.expert_weights,
                       state.operand(layer.gate_up).data, state.operand(layer.down).data, a.gate_up,
                       slots);
  }

  /// dupdate [N, H], the gradient of the combined output -> dslots [N top_k, H] and the routing
  /// weights' in the workspace; adds to the experts' gradients.
  template <class Policy>
  void experts_backward(const Policy& run, model_state<Policy>& state, const visit_plan& visit,
                        const matrix_view<const typename Policy::compute>& x,
                        const dispatch_plan& dispatch,
                        const visit_activations<typename Policy::compute>& a,
                        const matrix_view<const real_of<typename Policy::compute>>& dupdate,
                        const matrix_view<typename Policy::compute>& dslots) const {
    const layer_plan& layer = state.plan.layer_of(visit);
    expert_ffn_backward(run, detail::expert_shape(state, visit), x, dispatch, a.expert_weights,
                        state.operand(layer.gate_up).data, state.operand(layer.down).data,
                        a.gate_up, dupdate, state.gradients.at(layer.gate_up),
                        state.gradients.at(layer.down), state.work.dexpert_weights, dslots);
  }

  /// May give the balancing loss the counts of all ranks instead of this one's.
  template <class Policy>
  void share_counts(const Policy&, const ffn_shape&, const std::int32_t*, std::int64_t,
                    balance_setting&) const {}
};

}  // namespace smelt
