// SPDX-License-Identifier: Apache-2.0
//
// model_state: everything a forward or backward pass touches, tied to one policy and one plan.
//
//   weights       master weights in the real type (float32)
//   copy          what products read: the weights themselves, or their bf16 rounding
//   gradients     one per weight; all visits of a looped layer add to the same one
//   activations   per visit;   workspace   borrowed by all
//   router bias   [MoE visits, E], where experts are balanced without a loss: one per visit, as the
//                 visits of a looped layer choose among its experts each in its own way
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "smelt/model/activations.hpp"
#include "smelt/model/plan.hpp"
#include "smelt/model/weights.hpp"
#include "smelt/model/workspace.hpp"
#include "smelt/op/rope.hpp"

namespace smelt {

/// RMSNorm's epsilon, for every norm of a model.
inline constexpr double norm_epsilon = 1e-6;

template <class Policy>
class model_state {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;
  static constexpr bool has_copy = !std::is_same_v<compute, real>;

  /// Room for batches of up to `tokens` tokens; weights from `seed`.
  model_state(const Policy& run, const model_plan& plan_, std::int64_t tokens, std::uint64_t seed)
      : plan(plan_),
        weights(run, plan_, "weights"),
        gradients(run, plan_, "gradients"),
        activity(run, plan_, tokens),
        work(run, plan_, tokens) {
    if constexpr (has_copy)
      copy_ = std::make_unique<tensor_arena<compute, Policy>>(run, plan_, "weights in bf16");
    initialize_weights(run, plan, seed, weights);
    refresh_copy(run);
    if (plan.attention.rope_base > 0) fill_rope_tables(run, tokens);
  }

  /// Call after weights were written by anything but the optimizer (which writes both).
  void refresh_copy(const Policy& run) {
    if constexpr (has_copy) copy_weights(run, weights, *copy_);
  }

  /// Balancing by a bias on the router's choice from here on; all begin at 0.
  void use_router_bias(const Policy& run) {
    bias_ =
        allocate(run, router_bias_count() * static_cast<std::int64_t>(sizeof(real)), "router bias");
    bias_.zero();
  }
  std::int64_t router_bias_count() const { return plan.moe_visits() * plan.most_experts(); }
  /// [MoE visits, plan.most_experts()]; null without such balancing.
  real* router_bias() const { return reinterpret_cast<real*>(bias_.data()); }
  /// Of one visit, [E], or null.
  real* router_bias(const visit_plan& visit) const {
    return bias_.bytes() == 0 ? nullptr : router_bias() + visit.moe_visit * plan.most_experts();
  }

  /// What matrix products read.
  matrix_view<const compute> operand(const tensor_place& place) const {
    return {copy_data() + place.offset, place.rows, place.columns};
  }
  compute* copy_data() const {
    if constexpr (has_copy)
      return copy_->data();
    else
      return weights.data();
  }
  std::int64_t copy_bytes() const {
    if constexpr (has_copy)
      return copy_->bytes();
    else
      return 0;
  }

  model_plan plan;
  tensor_arena<real, Policy> weights;
  tensor_arena<real, Policy> gradients;
  activations<Policy> activity;
  workspace<Policy> work;

 private:
  // Made on the host, in double, for every backend alike.
  void fill_rope_tables(const Policy& run, std::int64_t tokens) {
    const std::int64_t size = rope_table_size(tokens, plan.attention.head_dim);
    std::vector<real> cosines(static_cast<std::size_t>(size)), sines(cosines.size());
    rope_table_values(cosines.data(), sines.data(), tokens, plan.attention.head_dim,
                      plan.attention.rope_base);
    upload(run, cosines.data(), size, work.cosines);
    upload(run, sines.data(), size, work.sines);
  }

  std::unique_ptr<tensor_arena<compute, Policy>> copy_;
  buffer_of<Policy> bias_;
};

}  // namespace smelt
