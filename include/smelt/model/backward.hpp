// SPDX-License-Identifier: Apache-2.0
//
// Backward pass, by hand: the visits of the plan in reverse, each sublayer the mirror of forward.
//
//   y = x + s U(RMSNorm(x)):   du = s dy,   dx = dy + RMSNorm'(U'(du))
//
// The gradient of the residual stream stays in one buffer and is added to in place. Every visit of
// a looped layer adds to the same weight gradient, so the sum is complete when the walk has passed
// the layer's first visit; the team is told then, and may reduce it over ranks meanwhile. With a
// shared cache, the gradients of keys and values gather in the layer's own buffer until the first
// visit, which made them, projects them down.
#pragma once

#include <cstdint>

#include "smelt/model/forward.hpp"

namespace smelt {

/// What the auxiliary losses of a pass need, and where they are added up, in the policy's memory.
template <class Policy>
struct router_losses {
  balance_setting setting{};
  balance_sums<typename Policy::statistic>* sums = nullptr;  // mean over MoE visits of each loss
  std::int64_t* expert_counts = nullptr;  // [MoE visits, max experts]: one record per visit
  std::int64_t counts_stride = 0;
};

namespace detail {

// `d` as an operand of the next product: itself, or rounded to bf16 in `narrow`.
template <class Policy>
matrix_view<const typename Policy::compute> operand_of(
    const Policy& run, const matrix_view<real_of<typename Policy::compute>>& d,
    typename Policy::compute* narrow) {
  if constexpr (model_state<Policy>::has_copy) {
    const auto rounded = rows_of(narrow, d.rows, d.columns);
    scaled(run, constant(d), 1.0F, rounded);
    return rounded;
  } else {
    return d;
  }
}

// Gradient of one projection y = x W^T: dW += dy^T x, dx (+)= dy W.
template <class Policy>
void projection_backward(const Policy& run, model_state<Policy>& state, const tensor_place& place,
                         const matrix_view<const typename Policy::compute>& dy,
                         const matrix_view<const typename Policy::compute>& x,
                         const matrix_view<real_of<typename Policy::compute>>& dx, into mode) {
  product(run, transposed(dy), x, state.gradients.matrix(place), into::accumulate);
  product(run, dy, state.operand(place), dx, mode);
}

// From the gradient of rotated, normalised queries (or keys) to that of the projection, in place or
// in the workspace; returns where it lies.
template <class Policy>
matrix_view<real_of<typename Policy::compute>> project_norm_backward(
    const Policy& run, model_state<Policy>& state,
    const matrix_view<real_of<typename Policy::compute>>& d, const batch_view& batch,
    const real_of<typename Policy::compute>* raw, const real_of<typename Policy::compute>* rstd,
    const tensor_place& gain) {
  using real = real_of<typename Policy::compute>;
  const attention_shape& shape = state.plan.attention;
  if (shape.rope_base > 0)
    rope_rotate(run, d, shape.head_dim, batch.positions, state.work.cosines, state.work.sines,
                rope_direction::inverse);
  if (shape.norm == qk_norm_kind::none) return d;
  const std::int64_t columns = shape.norm == qk_norm_kind::per_head ? shape.head_dim : d.columns;
  const std::int64_t rows = d.size() / columns;
  rms_norm_backward(run, rows_of<const real>(d.data, rows, columns),
                    rows_of<const real>(raw, rows, columns), state.weights.at(gain), rstd,
                    into::overwrite, rows_of(state.work.dunnormalized, rows, columns),
                    state.gradients.at(gain));
  return rows_of(state.work.dunnormalized, d.rows, d.columns);
}

template <class Policy>
void attention_sublayer_backward(const Policy& run, model_state<Policy>& state,
                                 const batch_view& batch, const visit_plan& visit,
                                 const visit_activations<typename Policy::compute>& a) {
  using compute = typename Policy::compute;
  using real = real_of<compute>;
  const layer_plan& layer = state.plan.layer_of(visit);
  const attention_shape& shape = state.plan.attention;
  workspace<Policy>& work = state.work;
  const std::int64_t n = batch.tokens;
  const std::int64_t hidden = state.plan.hidden;
  const std::int64_t q = shape.query_width();
  const std::int64_t kv = shape.kv_width();
  const bool own_keys = !shape.kv_shared_by_visits || visit.visit == 0;

  const auto dresidual = rows_of(work.dresidual, n, hidden);
  const auto dupdate = rows_of(work.dupdate, n, hidden);
  scaled(run, constant(dresidual), static_cast<real>(visit.residual_scale), dupdate);

  const auto dattention = rows_of(work.dattention, n, q);
  projection_backward(run, state, layer.output, constant(dupdate),
                      constant(rows_of(a.attention_output, n, q)), dattention, into::overwrite);

  // The walk meets the last of several visits first; it begins the sum over them.
  const bool first_met = !shape.kv_shared_by_visits || visit.visit == visit.visits - 1;
  const auto dquery = rows_of(work.dquery, n, q);
  const auto dkey = rows_of(work.dkey_of(visit), n, kv);
  const auto dvalue = rows_of(work.dvalue_of(visit), n, kv);
  attention_backward(run, shape, batch.documents, constant(dattention),
                     rows_of<const real>(a.query, n, q), rows_of<const real>(a.key, n, kv),
                     rows_of<const real>(a.value, n, kv),
                     constant(rows_of(a.attention_output, n, q)), a.logsumexp, dquery, dkey, dvalue,
                     first_met ? into::overwrite : into::accumulate);

  const auto dnormalized = rows_of(work.dnormalized, n, hidden);
  const auto x = constant(rows_of(a.attention_input, n, hidden));
  const auto draw =
      project_norm_backward(run, state, dquery, batch, a.query_raw, a.query_rstd, layer.query_norm);
  projection_backward(run, state, layer.query, operand_of(run, draw, work.narrow), x, dnormalized,
                      into::overwrite);
  if (own_keys) {
    const auto dkey_raw =
        project_norm_backward(run, state, dkey, batch, a.key_raw, a.key_rstd, layer.key_norm);
    projection_backward(run, state, layer.key, operand_of(run, dkey_raw, work.narrow), x,
                        dnormalized, into::accumulate);
    projection_backward(run, state, layer.value, operand_of(run, dvalue, work.narrow), x,
                        dnormalized, into::accumulate);
  }
  rms_norm_backward(run, constant(dnormalized), rows_of<const real>(a.residual_in, n, hidden),
                    state.weights.at(layer.attention_norm), a.attention_rstd, into::accumulate,
                    dresidual, state.gradients.at(layer.attention_norm));
}

template <class Policy, class Team>
void expert_backward(const Policy& run, model_state<Policy>& state, const batch_view& batch,
                     const visit_plan& visit, const visit_activations<typename Policy::compute>& a,
                     const matrix_view<const real_of<typename Policy::compute>>& dupdate,
                     const matrix_view<real_of<typename Policy::compute>>& dnormalized,
                     const router_losses<Policy>& losses, Team& team) {
  using real = real_of<typename Policy::compute>;
  const layer_plan& layer = state.plan.layer_of(visit);
  const ffn_shape& ffn = layer.ffn;
  workspace<Policy>& work = state.work;
  const std::int64_t n = batch.tokens;
  const std::int64_t hidden = state.plan.hidden;
  const auto x = rows_of(a.ffn_input, n, hidden);
  dispatch_plan dispatch = a.dispatch;
  dispatch.tokens = n;

  const auto dslots = rows_of(work.slots, n * ffn.top_k, hidden);
  team.experts_backward(run, state, visit, constant(x), dispatch, a, dupdate, dslots);
  combine_forward(run, constant(dslots), dispatch.slot_of, ffn.top_k, real(1), into::overwrite,
                  dnormalized);

  balance_setting setting = losses.setting;
  setting.share = 1.0 / static_cast<double>(state.plan.moe_visits());
  team.share_counts(run, ffn, a.chosen, n, setting);
  const auto probabilities = rows_of<const real>(a.probabilities, n, ffn.experts);
  balance_forward(run, probabilities, a.chosen, a.router_logsumexp, ffn.top_k, setting,
                  work.dprobabilities,
                  losses.expert_counts + visit.moe_visit * losses.counts_stride, losses.sums);

  const auto dlogits = rows_of(work.dlogits, n, ffn.experts);
  route_backward(run, probabilities, a.chosen, a.expert_weights, ffn.top_k,
                 state.plan.router_renormalized, work.dexpert_weights,
                 balance_backward<real>(setting, work.dprobabilities, a.router_logsumexp), dlogits);
  product(run, transposed(dlogits), router_input(run, state, x),
          state.gradients.matrix(layer.router), into::accumulate);
  product(run, dlogits, state.weights.constant(layer.router), dnormalized, into::accumulate);
}

template <class Policy, class Team>
void ffn_sublayer_backward(const Policy& run, model_state<Policy>& state, const batch_view& batch,
                           const visit_plan& visit,
                           const visit_activations<typename Policy::compute>& a,
                           const router_losses<Policy>& losses, Team& team) {
  using compute = typename Policy::compute;
  using real = real_of<compute>;
  const layer_plan& layer = state.plan.layer_of(visit);
  workspace<Policy>& work = state.work;
  const std::int64_t n = batch.tokens;
  const std::int64_t hidden = state.plan.hidden;
  const auto scale = static_cast<real>(visit.residual_scale);
  const auto dresidual = rows_of(work.dresidual, n, hidden);
  const auto dnormalized = rows_of(work.dnormalized, n, hidden);
  const auto x = constant(rows_of(a.ffn_input, n, hidden));

  const bool dense = layer.ffn.is_dense();
  if (!dense) {
    // The experts round their gradient where they gather it, so they take it in the real type.
    const auto dupdate = rows_of(work.update, n, hidden);
    scaled(run, constant(dresidual), scale, dupdate);
    expert_backward(run, state, batch, visit, a, constant(dupdate), dnormalized, losses, team);
  }
  if (dense || layer.ffn.shared_width > 0) {
    const tensor_place& gate_up = dense ? layer.gate_up : layer.shared_gate_up;
    const tensor_place& down = dense ? layer.down : layer.shared_down;
    const auto dupdate = rows_of(work.dupdate, n, hidden);
    scaled(run, constant(dresidual), scale, dupdate);
    dense_ffn_backward(run, constant(dupdate), x, dense ? a.gate_up : a.shared_gate_up,
                       {state.operand(gate_up), state.operand(down)}, work.dense,
                       {state.gradients.matrix(gate_up), state.gradients.matrix(down)}, dnormalized,
                       dense ? into::overwrite : into::accumulate);
  }
  rms_norm_backward(run, constant(dnormalized), rows_of<const real>(a.residual_middle, n, hidden),
                    state.weights.at(layer.ffn_norm), a.ffn_rstd, into::accumulate, dresidual,
                    state.gradients.at(layer.ffn_norm));
}

// Tells the team of a tensor, with the padding behind it, which stays zero.
template <class Policy, class Team>
void complete_tensor(const Policy& run, const tensor_place& place, Team& team) {
  if (place.exists()) team.complete(run, place.offset, place.padded_end());
}
template <class Policy, class Team>
void complete_layer(const Policy& run, const layer_plan& layer, Team& team) {
  for (const tensor_place& place :
       {layer.query, layer.key, layer.value, layer.output, layer.router, layer.gate_up, layer.down,
        layer.shared_gate_up, layer.shared_down, layer.attention_norm, layer.ffn_norm,
        layer.query_norm, layer.key_norm})
    complete_tensor(run, place, team);
}
// What lies behind the last layer; a tied head is complete with the embedding alone.
template <class Policy, class Team>
void complete_head(const Policy& run, const model_plan& plan, Team& team) {
  complete_tensor(run, plan.final_norm, team);
  if (!plan.tied()) complete_tensor(run, plan.head, team);
}

}  // namespace detail

/// Tells the team what backward tells it, in the same order, where there is no batch to walk.
template <class Policy, class Team>
void complete_all(const Policy& run, const model_plan& plan, Team& team) {
  detail::complete_head(run, plan, team);
  for (std::size_t i = plan.visits.size(); i-- > 0;)
    if (plan.visits[i].visit == 0) detail::complete_layer(run, plan.layer_of(plan.visits[i]), team);
  detail::complete_tensor(run, plan.embedding, team);
}

/// Adds the loss of a batch after forward(), in nats over the positions that count, to *loss_sum in
/// the policy's memory.
template <class Policy>
void evaluate_loss(const Policy& run, model_state<Policy>& state, const batch_view& batch,
                   typename Policy::statistic* loss_sum) {
  const auto x = detail::constant(
      detail::rows_of(state.activity.final_input(), batch.tokens, state.plan.hidden));
  head_loss(run, x, state.operand(state.plan.head), batch.targets, nullptr, state.work.head, {}, {},
            loss_sum);
}

/// Loss of a batch after forward(), and its gradient added to state.gradients:
///
///   objective = *scale * (sum of nats over positions that count) + auxiliary losses
///
/// Adds the nats, unscaled, to *loss_sum, and the auxiliary losses to losses.sums; clear both where
/// a step begins. All three lie in the policy's memory. The team: see one_rank.hpp.
template <class Policy, class Team>
void backward(const Policy& run, model_state<Policy>& state, const batch_view& batch,
              const real_of<typename Policy::compute>* scale, const router_losses<Policy>& losses,
              typename Policy::statistic* loss_sum, Team& team) {
  using real = real_of<typename Policy::compute>;
  const model_plan& plan = state.plan;
  const std::int64_t n = batch.tokens;
  const auto dnormalized = detail::rows_of(state.work.dnormalized, n, plan.hidden);
  const auto dresidual = detail::rows_of(state.work.dresidual, n, plan.hidden);
  const auto x = detail::constant(detail::rows_of(state.activity.final_input(), n, plan.hidden));
  head_loss(run, x, state.operand(plan.head), batch.targets, scale, state.work.head, dnormalized,
            state.gradients.matrix(plan.head), loss_sum);
  rms_norm_backward(run, detail::constant(dnormalized),
                    detail::rows_of<const real>(state.activity.final_residual(), n, plan.hidden),
                    state.weights.at(plan.final_norm), state.activity.final_rstd(), into::overwrite,
                    dresidual, state.gradients.at(plan.final_norm));
  detail::complete_head(run, plan, team);
  for (std::size_t i = plan.visits.size(); i-- > 0;) {
    const visit_plan& visit = plan.visits[i];
    // The forward pass writes what it wrote before, bit for bit; no statistic is counted there.
    if (run.recompute() == recomputation::visits && i + 1 < plan.visits.size())
      run.count_as_recomputed([&] { detail::visit_forward(run, state, batch, i, team); });
    const auto& a = state.activity.visit(i);
    detail::ffn_sublayer_backward(run, state, batch, visit, a, losses, team);
    detail::attention_sublayer_backward(run, state, batch, visit, a);
    if (visit.visit == 0) detail::complete_layer(run, plan.layer_of(visit), team);
  }
  embed_backward(run, batch.inputs, detail::constant(dresidual),
                 state.gradients.matrix(plan.embedding));
  detail::complete_tensor(run, plan.embedding, team);
}
template <class Policy>
void backward(const Policy& run, model_state<Policy>& state, const batch_view& batch,
              const real_of<typename Policy::compute>* scale, const router_losses<Policy>& losses,
              typename Policy::statistic* loss_sum) {
  one_rank alone;
  backward(run, state, batch, scale, losses, loss_sum, alone);
}

}  // namespace smelt
