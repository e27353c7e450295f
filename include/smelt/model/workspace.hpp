// SPDX-License-Identifier: Apache-2.0
//
// Memory that the visits of a model borrow in turn: results of a sublayer on their way into the
// residual stream, and gradients on their way down. Sized by the widest layer; nothing in it
// outlives the sublayer that fills it, except the gradient of the residual stream, which is carried
// from visit to visit, and the gradients of keys and values that several visits share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "smelt/exec/buffer.hpp"
#include "smelt/model/activations.hpp"
#include "smelt/model/plan.hpp"
#include "smelt/op/dense_ffn.hpp"
#include "smelt/op/loss.hpp"

namespace smelt {

template <class Policy>
class workspace {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;

  real* update = nullptr;           // [N, H] result of a sublayer; in backward its gradient
  real* dresidual = nullptr;        // [N, H] gradient of the residual stream
  real* dnormalized = nullptr;      // [N, H] gradient of a norm's output
  real* widened = nullptr;          // [N, H] a bf16 norm output as float32, for the router
  compute* dupdate = nullptr;       // [N, H] rounded for the next product
  real* dattention = nullptr;       // [N, q] gradient of attention's output
  real* dquery = nullptr;           // [N, q]
  real* dkey = nullptr;             // [N, kv]
  real* dvalue = nullptr;           // [N, kv]
  real* dunnormalized = nullptr;    // [N, q] gradient below query or key norm; null without one
  compute* narrow = nullptr;        // [N, max(q, kv)] one of these, rounded for a product
  compute* slots = nullptr;         // [N K, H] expert outputs, or gradients of their inputs
  real* dlogits = nullptr;          // [N, E]
  real* dexpert_weights = nullptr;  // [N, K]
  real* dprobabilities = nullptr;   // [N, E] of the balancing loss: one row per group, N at most
  dense_ffn_workspace<compute> dense{};
  head_workspace<compute> head{};
  real* cosines = nullptr;  // [N, head_dim / 2]
  real* sines = nullptr;

  workspace(const Policy& run, const model_plan& plan, std::int64_t tokens)
      : shared_(plan.layers.size()) {
    detail::arena_writer measure(nullptr);
    place(plan, tokens, measure);
    memory_ = allocate(run, measure.bytes(), "workspace");
    detail::arena_writer writer(memory_.data());
    place(plan, tokens, writer);
  }
  std::int64_t bytes() const { return memory_.bytes(); }

  /// Gradients of a layer's keys and values: its own while several visits share them, otherwise the
  /// common ones.
  real* dkey_of(const visit_plan& visit) const {
    real* own = shared_[static_cast<std::size_t>(visit.layer)].key;
    return own != nullptr ? own : dkey;
  }
  real* dvalue_of(const visit_plan& visit) const {
    real* own = shared_[static_cast<std::size_t>(visit.layer)].value;
    return own != nullptr ? own : dvalue;
  }

 private:
  struct shared_gradient {
    real* key = nullptr;
    real* value = nullptr;
  };

  void place(const model_plan& plan, std::int64_t n, detail::arena_writer& writer) {
    constexpr bool narrows = !std::is_same_v<compute, real>;
    const std::int64_t hidden = plan.hidden;
    const std::int64_t q = plan.attention.query_width();
    const std::int64_t kv = plan.attention.kv_width();
    std::int64_t experts = 0, top_k = 0, width = 0;
    for (const layer_plan& layer : plan.layers) {
      experts = std::max(experts, layer.ffn.experts);
      top_k = std::max(top_k, layer.ffn.top_k);
      width = std::max({width, layer.ffn.is_dense() ? layer.ffn.width : 0, layer.ffn.shared_width});
    }
    update = writer.take<real>(n * hidden);
    dresidual = writer.take<real>(n * hidden);
    dnormalized = writer.take<real>(n * hidden);
    if (narrows) widened = writer.take<real>(n * hidden);
    dupdate = writer.take<compute>(n * hidden);
    dattention = writer.take<real>(n * q);
    dquery = writer.take<real>(n * q);
    dkey = writer.take<real>(n * kv);
    dvalue = writer.take<real>(n * kv);
    if (plan.attention.norm != qk_norm_kind::none)
      dunnormalized = writer.take<real>(n * std::max(q, kv));
    narrow = writer.take<compute>(n * std::max(q, kv));
    slots = writer.take<compute>(n * top_k * hidden);
    dlogits = writer.take<real>(n * experts);
    dexpert_weights = writer.take<real>(n * top_k);
    dprobabilities = writer.take<real>(n * experts);
    dense.wide = writer.take<real>(n * 2 * width);
    dense.narrow = writer.take<compute>(n * 2 * width);
    dense.hidden = writer.take<compute>(n * width);
    const std::int64_t chunk = std::min(plan.vocabulary, head_chunk);
    head.logits = writer.take<real>(n * chunk);
    if constexpr (narrows)
      head.dlogits = writer.take<compute>(n * chunk);
    else
      head.dlogits = head.logits;
    head.maximum = writer.take<real>(n);
    head.sum = writer.take<real>(n);
    head.target_logit = writer.take<real>(n);
    cosines = writer.take<real>(n * plan.attention.head_dim / 2);
    sines = writer.take<real>(n * plan.attention.head_dim / 2);
    if (plan.attention.kv_shared_by_visits)
      for (const visit_plan& visit : plan.visits)
        if (visit.visit == 0 && visit.visits > 1)
          shared_[static_cast<std::size_t>(visit.layer)] = {writer.take<real>(n * kv),
                                                            writer.take<real>(n * kv)};
  }

  buffer_of<Policy> memory_;
  std::vector<shared_gradient> shared_;
};

}  // namespace smelt
