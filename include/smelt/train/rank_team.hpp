// SPDX-License-Identifier: Apache-2.0
//
// rank_team: the ranks that take a training step together, as one of them sees the others.
//
//   before     tokens and counted targets of the step are summed
//   forward    experts on other ranks: exchanged_experts.hpp
//   backward   gradients that are complete are reduced in buckets while the walk goes on; with a
//              sharded optimizer they are reduced once it has ended, to the owners alone
//   after      sums of losses, squares of the gradient and expert counts are summed, then judged:
//              all ranks accept a step or none does
//   update     each rank its part of the moments, then all weights to all, where they are sharded
//
// The squares of the gradient are summed by parts, one of each rank: every rank holds the same sum,
// sharded or not. A rank may have no micro-batch, unless ranks meet within one: with experts on
// several ranks or balancing over all, every rank has as many. Alone, all of this is nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "smelt/comm/data_parallel.hpp"
#include "smelt/comm/sharded_optimizer.hpp"
#include "smelt/model/backward.hpp"
#include "smelt/op/adamw.hpp"
#include "smelt/train/exchanged_experts.hpp"
#include "smelt/train/parallel_setting.hpp"
#include "smelt/train/rank_layout.hpp"
#include "smelt/train/step_memory.hpp"

namespace smelt {

template <class Engine, class Policy>
requires collectives<Engine, Policy>
class rank_team {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;

  /// Every rank of `world` makes one, with the same arguments; `world` must outlive it.
  rank_team(Engine& world, const Policy& run, const model_plan& whole, const parallel_setting& how)
      : world_(world),
        how_(how),
        layout_(whole, how.grid(world.size()), how.sharded_optimizer),
        mine_(layout_.of(world.rank() % how.expert_ranks)) {
    const std::int64_t experts = mine_.expert_elements();
    if (how.expert_ranks > 1) {
      grid_.emplace(world, layout_.grid());
      experts_.emplace(grid_->experts(), run, mine_.plan());
      groups_.push_back(std::make_unique<group>(grid_->replicas(), run, element_range{0, experts},
                                                how.sharded_optimizer));
    }
    groups_.push_back(std::make_unique<group>(
        world, run, element_range{experts, mine_.plan().elements}, how.sharded_optimizer));
    if (shares_counts()) counts_ = allocate(run, whole.most_experts() * 8, "counts of all ranks");
  }

  Engine& world() const { return world_; }
  const rank_layout& layout() const { return layout_; }
  const parallel_setting& setting() const { return how_; }
  /// The plan of this rank: its own experts, and all else.
  const model_plan& plan() const { return mine_.plan(); }
  std::int64_t optimizer_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& part : groups_) bytes += part->state.bytes();
    return bytes;
  }

  /// What this rank has sent since its engines were made, the grid's included.
  sent_bytes sent() {
    sent_bytes all = world_.sent();
    if (grid_) {
      all += grid_->experts().sent();
      all += grid_->replicas().sent();
    }
    return all;
  }

  // --- what a pass asks: see model/one_rank.hpp --------------------------------------------------

  void complete(const Policy& run, std::int64_t begin, std::int64_t end) {
    if (!is_last_pass_) return;
    for (const auto& part : groups_)
      if (part->is_reduced && begin >= part->range.begin && end <= part->range.end)
        part->reducer.complete(run, {begin - part->range.begin, end - part->range.begin});
  }
  void experts_forward(const Policy& run, model_state<Policy>& state, const visit_plan& visit,
                       const matrix_view<const compute>& x, const dispatch_plan& dispatch,
                       const visit_activations<compute>& a, const matrix_view<compute>& slots) {
    if (experts_)
      experts_->forward(run, state, visit, x, dispatch, a, slots);
    else
      one_rank{}.experts_forward(run, state, visit, x, dispatch, a, slots);
  }
  void experts_backward(const Policy& run, model_state<Policy>& state, const visit_plan& visit,
                        const matrix_view<const compute>& x, const dispatch_plan& dispatch,
                        const visit_activations<compute>& a, const matrix_view<const real>& dupdate,
                        const matrix_view<compute>& dslots) {
    if (experts_)
      experts_->backward(run, state, visit, dispatch, dupdate, dslots);
    else
      one_rank{}.experts_backward(run, state, visit, x, dispatch, a, dupdate, dslots);
  }
  void share_counts(const Policy& run, const ffn_shape& ffn, const std::int32_t* chosen,
                    std::int64_t tokens, balance_setting& setting) {
    if (!shares_counts()) return;
    auto* counts = reinterpret_cast<std::int64_t*>(counts_.data());
    count_experts(run, chosen, tokens, ffn.top_k, ffn.experts, counts);
    world_.all_reduce_sum(run, counts, ffn.experts);
    setting.group_counts = counts;
    setting.group_counts_tokens = pass_tokens_[pass_];
  }

  // --- what a trainer asks -----------------------------------------------------------------------

  /// Sums a step's tokens over the ranks; `micro_batches` are the tokens of each of this rank's.
  /// @throws smelt::agreed_error where the ranks must have as many and do not.
  step_tokens begin_step(const step_tokens& own, const std::vector<std::int64_t>& micro_batches) {
    if (is_alone()) return own;
    const auto count = static_cast<std::int64_t>(micro_batches.size());
    std::int64_t sums[4] = {own.tokens, own.counted, count, count * count};
    world_.all_reduce_sum(control_, sums, 4);
    // Equal numbers, and only those, have a square sum as small as their sum allows.
    if (ranks_meet_in_passes() && sums[2] * sums[2] != world_.size() * sums[3])
      throw agreed_error("step of " + std::to_string(world_.size()) +
                         " ranks: expected as many micro-batches on every rank, found " +
                         std::to_string(sums[2]) +
                         " in all, dealt unevenly; give each rank the same number");
    if (shares_counts()) {
      pass_tokens_ = micro_batches;
      world_.all_reduce_sum(control_, pass_tokens_.data(), count);
    }
    return {sums[0], sums[1]};
  }
  /// Sizes that the work of a step depends on beside this rank's own.
  void add_to_key(std::vector<std::int64_t>& key) const {
    if (shares_counts()) key.insert(key.end(), pass_tokens_.begin(), pass_tokens_.end());
  }

  void begin_gradient(real* gradients) {
    for (const auto& part : groups_)
      if (part->is_reduced) part->reducer.begin(gradients + part->range.begin);
  }
  /// Passes are numbered; the last one of a step completes its gradients.
  void begin_pass(std::size_t pass, bool is_last) {
    pass_ = pass;
    is_last_pass_ = is_last;
  }
  /// The sum over ranks, where this rank updates; adds up its share of the squares.
  void finish_gradient(const Policy& run, real* gradients, typename Policy::statistic* squares) {
    into mode = into::overwrite;
    for (const auto& part : groups_) {
      real* own = gradients + part->range.begin;
      if (how_.sharded_optimizer)
        part->state.sum(run, own);
      else if (part->is_reduced)
        part->reducer.finish(run);
      const element_range share =
          shards{part->range.count(), part->ranks.size()}.of(part->ranks.rank());
      sum_of_squares(run, own + share.begin, share.count(), squares, mode);
      mode = into::accumulate;
    }
  }
  /// Sums and expert counts of the step over all ranks.
  void add_up(const Policy& run, step_sums<typename Policy::statistic>* sums, std::int64_t* counts,
              std::int64_t count) {
    if (is_alone()) return;
    // Not a member of *sums, which may lie on a device: its address alone.
    auto* first = reinterpret_cast<typename Policy::statistic*>(sums);
    world_.all_reduce_sum(run, first, step_sums<typename Policy::statistic>::over_ranks);
    world_.all_reduce_sum(run, counts, count);
  }

  /// Calls update(begin, end, first, second) for the parts of the arena that this rank updates,
  /// none of which holds both matrices and gains; then passes the weights on.
  template <class Update>
  void update(const Policy& run, real* weights, Update&& update_range) {
    for (const auto& part : groups_) {
      const std::int64_t begin = part->range.begin;
      const std::int64_t boundary =
          std::clamp(plan().matrix_elements, begin, part->range.end) - begin;
      part->state.update(run, weights + begin, boundary,
                         [&](const element_range& range, real* first, real* second) {
                           update_range(begin + range.begin, begin + range.end, first, second);
                         });
    }
  }

  /// AdamW's moments of element `offset` of the arena, which must be one that this rank updates.
  real* first_moment(std::int64_t offset) const {
    const group& part = group_of(offset);
    return part.state.first_moments() + (offset - part.range.begin - part.state.range().begin);
  }
  real* second_moment(std::int64_t offset) const {
    const group& part = group_of(offset);
    return part.state.second_moments() + (offset - part.range.begin - part.state.range().begin);
  }

  bool is_alone() const { return world_.size() == 1; }
  /// Whether a step's launches may be recorded and replayed.
  bool can_be_captured() const {
    if constexpr (requires { Engine::can_be_captured; })
      return is_alone() || (Engine::can_be_captured && !experts_);
    else
      return is_alone();
  }

 private:
  // Weights that the same ranks hold.
  struct group {
    group(Engine& ranks_, const Policy& run, const element_range& range_, bool sharded)
        : ranks(ranks_),
          range(range_),
          is_reduced(!sharded && ranks_.size() > 1),
          reducer(ranks_, is_reduced ? range_.count() : 0),
          state(ranks_, run, range_.count(), sharded) {}
    Engine& ranks;
    element_range range;
    bool is_reduced;  // in buckets, while the walk back goes on
    gradient_reducer<Engine, Policy> reducer;
    optimizer_shard<Engine, Policy> state;
  };

  bool shares_counts() const { return how_.global_balance && !is_alone(); }
  bool ranks_meet_in_passes() const { return experts_.has_value() || shares_counts(); }
  const group& group_of(std::int64_t offset) const {
    return offset < groups_.front()->range.end ? *groups_.front() : *groups_.back();
  }

  host<> control_{1};
  Engine& world_;
  parallel_setting how_;
  rank_layout layout_;
  const rank_plan& mine_;
  std::optional<grid_of_ranks<Engine>> grid_;
  std::optional<exchanged_experts<Engine, Policy>> experts_;
  std::vector<std::unique_ptr<group>> groups_;
  buffer_of<Policy> counts_;  // [E] over all ranks
  std::vector<std::int64_t> pass_tokens_;
  std::size_t pass_ = 0;
  bool is_last_pass_ = true;
};

}  // namespace smelt
