// SPDX-License-Identifier: Apache-2.0
//
// Forward pass: embedding, then the visits of the plan one by one, then the final norm.
//
//   x += s Attention(RMSNorm(x)),   x += s Ffn(RMSNorm(x)),   s the visit's residual scale
//
// A visit writes its output into residual_in of the next one. What forward leaves in the activation
// arena is all that backward reads. Source: paper section 1.
#pragma once

#include <cstdint>

#include "smelt/model/batch.hpp"
#include "smelt/model/one_rank.hpp"
#include "smelt/model/state.hpp"
#include "smelt/op/attention.hpp"
#include "smelt/op/balance.hpp"
#include "smelt/op/dense_ffn.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/embed.hpp"
#include "smelt/op/expert_ffn.hpp"
#include "smelt/op/residual.hpp"
#include "smelt/op/rms_norm.hpp"
#include "smelt/op/rope.hpp"
#include "smelt/op/route.hpp"

namespace smelt {

namespace detail {

// A contiguous [rows, columns] view; forward and backward make many.
template <class T>
matrix_view<T> rows_of(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns};
}
template <class T>
matrix_view<const T> constant(const matrix_view<T>& view) {
  return view;
}

// Query (or key) norm in place of the raw projection: rows of one head, or of the full width.
template <class Policy, class Real>
void project_norm_forward(const Policy& run, qk_norm_kind kind, const Real* raw,
                          std::int64_t tokens, std::int64_t width, std::int64_t head_dim,
                          const Real* gain, Real* out, Real* rstd) {
  const std::int64_t columns = kind == qk_norm_kind::per_head ? head_dim : width;
  const std::int64_t rows = tokens * width / columns;
  rms_norm_forward(run, rows_of(raw, rows, columns), gain, static_cast<Real>(norm_epsilon),
                   rows_of(out, rows, columns), rstd);
}

template <class Policy>
void attention_sublayer_forward(const Policy& run, model_state<Policy>& state,
                                const batch_view& batch, const visit_plan& visit,
                                const visit_activations<typename Policy::compute>& a) {
  using real = real_of<typename Policy::compute>;
  const layer_plan& layer = state.plan.layer_of(visit);
  const attention_shape& shape = state.plan.attention;
  const std::int64_t n = batch.tokens;
  const std::int64_t hidden = state.plan.hidden;
  const std::int64_t q = shape.query_width();
  const std::int64_t kv = shape.kv_width();
  const bool own_keys = !shape.kv_shared_by_visits || visit.visit == 0;

  const auto x = rows_of<const real>(a.residual_in, n, hidden);
  const auto normalized = rows_of(a.attention_input, n, hidden);
  rms_norm_forward(run, x, state.weights.at(layer.attention_norm), static_cast<real>(norm_epsilon),
                   normalized, a.attention_rstd);

  const bool norm = shape.norm != qk_norm_kind::none;
  product(run, normalized, transposed(state.operand(layer.query)),
          rows_of(norm ? a.query_raw : a.query, n, q));
  if (norm)
    project_norm_forward<Policy, real>(run, shape.norm, a.query_raw, n, q, shape.head_dim,
                                       state.weights.at(layer.query_norm), a.query, a.query_rstd);
  if (own_keys) {
    product(run, normalized, transposed(state.operand(layer.key)),
            rows_of(norm ? a.key_raw : a.key, n, kv));
    product(run, normalized, transposed(state.operand(layer.value)), rows_of(a.value, n, kv));
    if (norm)
      project_norm_forward<Policy, real>(run, shape.norm, a.key_raw, n, kv, shape.head_dim,
                                         state.weights.at(layer.key_norm), a.key, a.key_rstd);
  }
  if (shape.rope_base > 0) {
    rope_rotate(run, rows_of(a.query, n, q), shape.head_dim, batch.positions, state.work.cosines,
                state.work.sines, rope_direction::forward);
    if (own_keys)
      rope_rotate(run, rows_of(a.key, n, kv), shape.head_dim, batch.positions, state.work.cosines,
                  state.work.sines, rope_direction::forward);
  }
  attention_forward(run, shape, batch.documents, rows_of<const real>(a.query, n, q),
                    rows_of<const real>(a.key, n, kv), rows_of<const real>(a.value, n, kv),
                    rows_of(a.attention_output, n, q), a.logsumexp);

  const auto update = rows_of(state.work.update, n, hidden);
  product(run, rows_of(a.attention_output, n, q), transposed(state.operand(layer.output)), update);
  residual_add(run, x, static_cast<real>(visit.residual_scale), constant(update),
               rows_of(a.residual_middle, n, hidden));
}

// The norm's output as the float32 router reads it: itself, or widened from bf16.
template <class Policy>
matrix_view<const real_of<typename Policy::compute>> router_input(
    const Policy& run, model_state<Policy>& state,
    const matrix_view<typename Policy::compute>& normalized) {
  if constexpr (model_state<Policy>::has_copy) {
    const auto wide = rows_of(state.work.widened, normalized.rows, normalized.columns);
    scaled(run, constant(normalized), 1.0F, wide);
    return wide;
  } else {
    return normalized;
  }
}

template <class Policy, class Team>
void ffn_sublayer_forward(const Policy& run, model_state<Policy>& state, const batch_view& batch,
                          const visit_plan& visit,
                          const visit_activations<typename Policy::compute>& a,
                          real_of<typename Policy::compute>* residual_out, Team& team) {
  using real = real_of<typename Policy::compute>;
  const layer_plan& layer = state.plan.layer_of(visit);
  const ffn_shape& ffn = layer.ffn;
  const std::int64_t n = batch.tokens;
  const std::int64_t hidden = state.plan.hidden;

  const auto x = rows_of<const real>(a.residual_middle, n, hidden);
  const auto normalized = rows_of(a.ffn_input, n, hidden);
  rms_norm_forward(run, x, state.weights.at(layer.ffn_norm), static_cast<real>(norm_epsilon),
                   normalized, a.ffn_rstd);

  const auto update = rows_of(state.work.update, n, hidden);
  if (ffn.is_dense()) {
    dense_ffn_forward(run, constant(normalized),
                      {state.operand(layer.gate_up), state.operand(layer.down)}, a.gate_up,
                      state.work.dense, update, into::overwrite);
  } else {
    const auto logits = rows_of(a.probabilities, n, ffn.experts);
    product(run, router_input(run, state, normalized),
            transposed(state.weights.constant(layer.router)), logits);
    route_forward(run, constant(logits), ffn.top_k, state.plan.router_renormalized, logits,
                  a.chosen, a.expert_weights, a.router_logsumexp, state.router_bias(visit));
    dispatch_plan dispatch = a.dispatch;
    dispatch.tokens = n;  // the arrays have room for more
    dispatch_forward(run, a.chosen, dispatch);
    const auto slots = rows_of(state.work.slots, n * ffn.top_k, hidden);
    team.experts_forward(run, state, visit, constant(normalized), dispatch, a, slots);
    combine_forward(run, constant(slots), dispatch.slot_of, ffn.top_k, real(1), into::overwrite,
                    update);
    if (ffn.shared_width > 0)
      dense_ffn_forward(run, constant(normalized),
                        {state.operand(layer.shared_gate_up), state.operand(layer.shared_down)},
                        a.shared_gate_up, state.work.dense, update, into::accumulate);
  }
  residual_add(run, x, static_cast<real>(visit.residual_scale), constant(update),
               rows_of(residual_out, n, hidden));
}

// Visit i of the plan: from its residual_in to that of the next.
template <class Policy, class Team>
void visit_forward(const Policy& run, model_state<Policy>& state, const batch_view& batch,
                   std::size_t i, Team& team) {
  const visit_plan& visit = state.plan.visits[i];
  const auto& a = state.activity.visit(i);
  attention_sublayer_forward(run, state, batch, visit, a);
  ffn_sublayer_forward(run, state, batch, visit, a,
                       i + 1 < state.plan.visits.size() ? state.activity.visit(i + 1).residual_in
                                                        : state.activity.final_residual(),
                       team);
}

}  // namespace detail

/// Runs the body on a batch of at most the state's capacity; the result, normalised for the head,
/// lies in state.activity.final_input(). The team: see one_rank.hpp.
template <class Policy, class Team>
void forward(const Policy& run, model_state<Policy>& state, const batch_view& batch, Team& team) {
  using real = real_of<typename Policy::compute>;
  const std::int64_t n = batch.tokens;
  const std::int64_t hidden = state.plan.hidden;
  embed_forward(run, batch.inputs, state.weights.constant(state.plan.embedding),
                detail::rows_of(state.activity.visit(0).residual_in, n, hidden));
  for (std::size_t i = 0; i < state.plan.visits.size(); ++i)
    detail::visit_forward(run, state, batch, i, team);
  rms_norm_forward(run, detail::rows_of<const real>(state.activity.final_residual(), n, hidden),
                   state.weights.at(state.plan.final_norm), static_cast<real>(norm_epsilon),
                   detail::rows_of(state.activity.final_input(), n, hidden),
                   state.activity.final_rstd());
}
template <class Policy>
void forward(const Policy& run, model_state<Policy>& state, const batch_view& batch) {
  one_rank alone;
  forward(run, state, batch, alone);
}

}  // namespace smelt
