// SPDX-License-Identifier: Apache-2.0
//
// exchanged_experts: the experts of a model that lie on several ranks, as one visit after the other
// uses them.
//
//   forward    x in slot order -> owners [R, H], with the routing weights [R]
//              own experts on R rows, each its own slot -> outputs [R, H] -> back in slot order
//   backward   gradient of the outputs -> owners; gradients of x and of the routing weights back
//
// R rows come to this rank from all, another number in every visit and step, perhaps none. Rows and
// the experts' activations are kept per visit for backward, or once where visits are recomputed.
// They grow to the largest R seen and then stay. Experts see the rows that one rank with all tokens
// would give them, in the same order, so outputs do not depend on the number of ranks.
//
// Sent: see budget/traffic.hpp; and 8 bytes a copy for the routing weights, there and back. The
// counts of a visit come to the host: a step of a device waits for them and cannot be recorded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "smelt/comm/expert_parallel.hpp"
#include "smelt/model/forward.hpp"

namespace smelt {

template <class Engine, class Policy>
class exchanged_experts {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;

  /// For the visits of a plan; `ranks` is the grid's experts() and must outlive this.
  exchanged_experts(Engine& ranks, const Policy& run, const model_plan& plan)
      : travelling_(std::make_shared<buffer_of<Policy>>()),
        recomputed_(run.recompute() == recomputation::visits),
        kept_(static_cast<std::size_t>(recomputed_ ? 1 : plan.moe_visits())) {
    for (const visit_plan& visit : plan.visits) {
      const std::int64_t experts = plan.layer_of(visit).ffn.experts;
      if (experts > 0)
        exchanges_.push_back(
            std::make_unique<expert_exchange<Engine, Policy>>(ranks, experts, travelling_));
    }
    offsets_.resize(static_cast<std::size_t>(plan.most_experts() + 1));
    counts_.resize(offsets_.size());
  }

  /// As one_rank::experts_forward; every rank of the exchange calls it.
  void forward(const Policy& run, model_state<Policy>& state, const visit_plan& visit,
               const matrix_view<const compute>& x, const dispatch_plan& dispatch,
               const visit_activations<compute>& a, const matrix_view<compute>& slots) {
    const layer_plan& layer = state.plan.layer_of(visit);
    const std::int64_t hidden = state.plan.hidden;
    auto& exchange = exchange_of(visit);
    rows& kept = rows_of_visit(visit);

    download(run, static_cast<const std::int64_t*>(dispatch.offsets), dispatch.experts + 1,
             offsets_.data());
    for (std::size_t e = 0; e < static_cast<std::size_t>(dispatch.experts); ++e)
      counts_[e] = offsets_[e + 1] - offsets_[e];
    exchange.plan(control_, counts_.data());
    const std::int64_t received = exchange.received();

    // The slots' own memory carries x there and the outputs back.
    rows_to_slots(run, x, dispatch, slots);
    real* by_slot = grown<real>(run, by_slot_, dispatch.slots());
    weights_to_slots(run, static_cast<const real*>(a.expert_weights), dispatch, by_slot);
    compute* inputs = grown<compute>(run, kept.inputs, received * hidden);
    real* weights = grown<real>(run, kept.weights, received);
    exchange.dispatch(run, static_cast<const compute*>(slots.data), hidden, inputs);
    exchange.dispatch(run, static_cast<const real*>(by_slot), 1, weights);

    const dispatch_plan here = plan_here(run, exchange, kept);
    compute* outputs = grown<compute>(run, outputs_, received * hidden);
    expert_ffn_forward(run, shape_here(exchange, state, visit),
                       detail::rows_of<const compute>(inputs, received, hidden), here, weights,
                       state.operand(layer.gate_up).data, state.operand(layer.down).data,
                       grown<compute>(run, kept.gate_up, received * 2 * layer.ffn.width),
                       detail::rows_of(outputs, received, hidden));
    exchange.combine(run, static_cast<const compute*>(outputs), hidden, slots.data);
  }

  /// As one_rank::experts_backward, after the visit's forward().
  void backward(const Policy& run, model_state<Policy>& state, const visit_plan& visit,
                const dispatch_plan& dispatch, const matrix_view<const real>& dupdate,
                const matrix_view<compute>& dslots) {
    const layer_plan& layer = state.plan.layer_of(visit);
    const std::int64_t hidden = state.plan.hidden;
    auto& exchange = exchange_of(visit);
    rows& kept = rows_of_visit(visit);
    const std::int64_t received = exchange.received();

    rows_to_slots(run, dupdate, dispatch, dslots);
    compute* arrived = grown<compute>(run, arrived_, received * hidden);
    exchange.dispatch(run, static_cast<const compute*>(dslots.data), hidden, arrived);
    const auto dout = widened(run, detail::rows_of<const compute>(arrived, received, hidden));

    const dispatch_plan here = plan_here(run, exchange, kept);
    compute* dinputs = grown<compute>(run, outputs_, received * hidden);
    real* dweights = grown<real>(run, dweights_, received);
    expert_ffn_backward(run, shape_here(exchange, state, visit),
                        detail::rows_of<const compute>(at<compute>(kept.inputs), received, hidden),
                        here, at<real>(kept.weights), state.operand(layer.gate_up).data,
                        state.operand(layer.down).data,
                        static_cast<const compute*>(at<compute>(kept.gate_up)), dout,
                        state.gradients.at(layer.gate_up), state.gradients.at(layer.down), dweights,
                        detail::rows_of(dinputs, received, hidden));
    exchange.combine(run, static_cast<const compute*>(dinputs), hidden, dslots.data);
    real* by_slot = grown<real>(run, by_slot_, dispatch.slots());
    exchange.combine(run, static_cast<const real*>(dweights), 1, by_slot);
    weights_from_slots(run, static_cast<const real*>(by_slot), dispatch,
                       state.work.dexpert_weights);
  }

 private:
  using buffer = buffer_of<Policy>;

  // What a visit keeps for backward: rows of R.
  struct rows {
    buffer inputs;   // [R, H]
    buffer weights;  // [R]
    buffer gate_up;  // [R, 2f]
    buffer offsets;  // [own experts + 1]
  };

  template <class T>
  static T* at(const buffer& memory) {
    return reinterpret_cast<T*>(memory.data());
  }
  // Grows by a quarter more than asked, as counts differ a little from step to step.
  template <class T>
  static T* grown(const Policy& run, buffer& memory, std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    if (memory.bytes() < bytes || memory.bytes() == 0)
      memory = allocate(run, aligned_bytes(bytes + bytes / 4 + 1), "rows of other ranks");
    return at<T>(memory);
  }

  expert_exchange<Engine, Policy>& exchange_of(const visit_plan& visit) {
    return *exchanges_[static_cast<std::size_t>(visit.moe_visit)];
  }
  rows& rows_of_visit(const visit_plan& visit) {
    return kept_[recomputed_ ? 0 : static_cast<std::size_t>(visit.moe_visit)];
  }
  static expert_ffn_shape shape_here(const expert_exchange<Engine, Policy>& exchange,
                                     const model_state<Policy>& state, const visit_plan& visit) {
    return {exchange.own_experts().count(), 1, state.plan.hidden,
            state.plan.layer_of(visit).ffn.width};
  }

  // Received rows lie sorted by expert: each is its own token with one choice.
  dispatch_plan plan_here(const Policy& run, const expert_exchange<Engine, Policy>& exchange,
                          rows& kept) {
    const std::int64_t received = exchange.received();
    if (identity_rows_ < received || identity_rows_ == 0) {
      identity_rows_ = received + received / 4 + 1;
      grown<std::int64_t>(run, identity_, identity_rows_);
      grown<std::int32_t>(run, no_choice_, identity_rows_);
      identity_dispatch(run, {.tokens = identity_rows_,
                              .experts = 1,
                              .top_k = 1,
                              .offsets = nullptr,
                              .slot_of = at<std::int64_t>(identity_),
                              .token_of = at<std::int64_t>(identity_),
                              .choice_of = at<std::int32_t>(no_choice_)});
    }
    const auto own = static_cast<std::int64_t>(exchange.offsets().size());
    std::int64_t* offsets = grown<std::int64_t>(run, kept.offsets, own);
    upload(run, exchange.offsets().data(), own, offsets);
    return {.tokens = received,
            .experts = own - 1,
            .top_k = 1,
            .offsets = offsets,
            .slot_of = at<std::int64_t>(identity_),
            .token_of = at<std::int64_t>(identity_),
            .choice_of = at<std::int32_t>(no_choice_)};
  }

  // The experts take their gradient in the real type; what travelled was rounded for them anyway.
  matrix_view<const real> widened(const Policy& run, const matrix_view<const compute>& narrow) {
    if constexpr (std::is_same_v<compute, real>) {
      return narrow;
    } else {
      const auto wide =
          detail::rows_of(grown<real>(run, widened_, narrow.size()), narrow.rows, narrow.columns);
      scaled(run, narrow, 1.0F, wide);
      return wide;
    }
  }

  host<> control_{1};  // counts are the host's
  std::shared_ptr<buffer> travelling_;
  bool recomputed_;
  std::vector<rows> kept_;
  std::vector<std::unique_ptr<expert_exchange<Engine, Policy>>> exchanges_;  // per MoE visit
  std::vector<std::int64_t> offsets_, counts_;
  buffer by_slot_, outputs_, arrived_, widened_, dweights_;
  buffer identity_, no_choice_;
  std::int64_t identity_rows_ = 0;
};

}  // namespace smelt
