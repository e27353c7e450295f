// SPDX-License-Identifier: Apache-2.0
//
// A rank's copy of a model, and forward and backward over micro-batches, as a trainer would have
// them on several ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/small_models.hpp"

namespace smelt::test {

/// Four micro-batches of unequal lengths: a mean of means over them is not the mean.
inline std::vector<token_batch> four_batches(std::uint32_t seed) {
  std::vector<token_batch> batches;
  batches.push_back(documents_of({9, 4}, seed));
  batches.push_back(documents_of({3}, seed + 1));
  batches.push_back(documents_of({1, 11, 2}, seed + 2));
  batches.push_back(documents_of({6, 6}, seed + 3));
  return batches;
}
inline constexpr std::int64_t most_tokens = 14;

/// Gradients that are complete when the walk back has passed the first visit of a layer. Tensors
/// lie 16 elements apart; what is between them belongs to the one before.
template <class Complete>
void complete_tensor(const tensor_place& place, Complete&& complete) {
  if (place.exists())
    complete(element_range{place.offset, place.offset + (place.count() + 15) / 16 * 16});
}
template <class Complete>
void complete_layer(const layer_plan& layer, Complete&& complete) {
  for (const tensor_place& place :
       {layer.query, layer.key, layer.value, layer.output, layer.router, layer.gate_up, layer.down,
        layer.shared_gate_up, layer.shared_down, layer.attention_norm, layer.ffn_norm,
        layer.query_norm, layer.key_norm})
    complete_tensor(place, complete);
}

/// The walk of model/backward.hpp, telling complete(range) what is complete; with no batch only the
/// telling, for a rank that has no token.
template <class Policy, class Complete>
void walk_back(const Policy& run, model_state<Policy>& state, const batch_view* batch,
               const typename Policy::real* scale, const router_losses<Policy>& losses,
               double* loss_sum, Complete&& complete) {
  using real = typename Policy::real;
  const model_plan& plan = state.plan;
  if (batch != nullptr) {
    const std::int64_t n = batch->tokens;
    const auto dnormalized = detail::rows_of(state.work.dnormalized, n, plan.hidden);
    const auto dresidual = detail::rows_of(state.work.dresidual, n, plan.hidden);
    head_loss(run, detail::constant(detail::rows_of(state.activity.final_input(), n, plan.hidden)),
              state.operand(plan.head), batch->targets, scale, state.work.head, dnormalized,
              state.gradients.matrix(plan.head), loss_sum);
    rms_norm_backward(run, detail::constant(dnormalized),
                      detail::rows_of<const real>(state.activity.final_residual(), n, plan.hidden),
                      state.weights.at(plan.final_norm), state.activity.final_rstd(),
                      into::overwrite, dresidual, state.gradients.at(plan.final_norm));
  }
  complete_tensor(plan.final_norm, complete);
  if (!plan.tied()) complete_tensor(plan.head, complete);
  std::int64_t moe_visit = plan.moe_visits();
  for (std::size_t i = plan.visits.size(); i-- > 0;) {
    const visit_plan& visit = plan.visits[i];
    const layer_plan& layer = plan.layers[static_cast<std::size_t>(visit.layer)];
    if (!layer.ffn.is_dense()) --moe_visit;
    if (batch != nullptr) {
      const auto& a = state.activity.visit(i);
      detail::ffn_sublayer_backward(run, state, *batch, visit, a, losses, moe_visit);
      detail::attention_sublayer_backward(run, state, *batch, visit, a);
    }
    if (visit.visit == 0) complete_layer(layer, complete);
  }
  if (batch != nullptr)
    embed_backward(
        run, batch->inputs,
        detail::constant(detail::rows_of(state.work.dresidual, batch->tokens, plan.hidden)),
        state.gradients.matrix(plan.embedding));
  complete_tensor(plan.embedding, complete);
}

/// A model with the sums of a step.
template <class Model, class Compute>
struct replica {
  using policy = host<Compute>;
  using real = real_of<Compute>;

  explicit replica(std::uint64_t seed = 3)
      : state(run, plan_of<Model>(), most_tokens, seed),
        counts(static_cast<std::size_t>(state.plan.moe_visits() * most_experts)) {}

  // No model here has more.
  static constexpr std::int64_t most_experts = 16;

  /// Gradient and losses of these micro-batches, as a share of a step with `total` tokens. In the
  /// last of them complete(range) is told; see walk_back.
  template <class Complete>
  void accumulate(const std::vector<batch_view>& batches, const step_tokens& total,
                  const training_options& options, Complete&& complete) {
    state.gradients.zero();
    loss_sum = 0.0;
    router = {};
    std::fill(counts.begin(), counts.end(), 0);
    router_losses<policy> losses;
    losses.sums = &router;
    losses.expert_counts = counts.data();
    losses.counts_stride = most_experts;
    losses.setting.balance_coefficient = options.balance_coefficient;
    losses.setting.z_coefficient = options.z_coefficient;
    losses.setting.total_tokens = total.tokens;
    const real scale = static_cast<real>(1.0 / static_cast<double>(total.counted));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      losses.setting.group_tokens = batches[i].tokens;
      forward(run, state, batches[i]);
      if (i + 1 < batches.size())
        backward(run, state, batches[i], &scale, losses, &loss_sum);
      else
        walk_back(run, state, &batches[i], &scale, losses, &loss_sum, complete);
    }
    if (batches.empty()) walk_back(run, state, nullptr, &scale, losses, &loss_sum, complete);
  }

  policy run{1};
  model_state<policy> state;
  double loss_sum = 0.0;
  balance_sums<double> router{};
  std::vector<std::int64_t> counts;
};

/// The micro-batches of a rank, in order, and what it counts in them.
inline std::vector<batch_view> share_of(const std::vector<token_batch>& batches,
                                        const element_range& range) {
  std::vector<batch_view> views;
  for (std::int64_t i = range.begin; i < range.end; ++i)
    views.push_back(batches[static_cast<std::size_t>(i)].view());
  return views;
}
inline step_tokens tokens_of(const std::vector<batch_view>& batches) {
  step_tokens sum;
  for (const batch_view& batch : batches) {
    sum.tokens += batch.tokens;
    sum.counted += batch.counted();
  }
  return sum;
}

}  // namespace smelt::test
