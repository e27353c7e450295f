// SPDX-License-Identifier: Apache-2.0
//
// rank_layout: where the weights of a model, their gradients and their moments lie on the ranks of
// a grid.
//
//   one expert rank     the arena of the model, on every rank
//   several             [ experts of this rank | all else, in the order of the model ]
//
// These two ranges are the parameter groups: the first is held alike by the replicas and reduced
// over them, the second by all ranks. A sharded optimizer divides each range among the ranks that
// hold it. One rank owns each element of what a checkpoint writes: the lowest that has it.
//
// Elements keep their number in the whole model (tensor_place::origin), so that they start with the
// same values on any grid.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/comm/rank_grid.hpp"
#include "smelt/model/plan.hpp"
#include "smelt/model/weights.hpp"

namespace smelt {

/// Part of a tensor that one rank has: elements [first, first + count) of the whole tensor, at
/// `offset` in the rank's arena.
struct tensor_part {
  std::int64_t rank = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
};

/// What a rank keeps per weight: the weights themselves, or AdamW's moments, which may be sharded.
enum class kept_array { weights, moments };

/// The plan of one expert rank, with the tables it points into.
class rank_plan {
 public:
  /// Of one of `expert_ranks` ranks, which share every layer's experts in consecutive parts.
  rank_plan(const model_plan& whole, std::int64_t expert_rank, std::int64_t expert_ranks)
      : layers_(whole.layers.begin(), whole.layers.end()), plan_(whole) {
    plan_.layers = layers_;
    if (expert_ranks == 1) {
      expert_elements_ = 0;
      return;
    }
    std::int64_t next = 0;
    // Rows [begin, end) of a tensor of the whole model, behind what was placed before.
    const auto place = [&next](tensor_place& tensor, std::int64_t begin, std::int64_t end) {
      if (!tensor.exists()) return;
      tensor = {next, end - begin, tensor.columns, tensor.origin + begin * tensor.columns};
      next = tensor.padded_end();
    };
    const auto all = [&place](tensor_place& tensor) { place(tensor, 0, tensor.rows); };
    for (layer_plan& layer : layers_) {
      if (layer.ffn.is_dense()) continue;
      const element_range own = shards{layer.ffn.experts, expert_ranks}.of(expert_rank);
      const std::int64_t gate_up_rows = layer.gate_up.rows / layer.ffn.experts;
      const std::int64_t down_rows = layer.down.rows / layer.ffn.experts;
      place(layer.gate_up, own.begin * gate_up_rows, own.end * gate_up_rows);
      place(layer.down, own.begin * down_rows, own.end * down_rows);
    }
    expert_elements_ = next;
    const bool tied = whole.tied();
    all(plan_.embedding);
    if (tied)
      plan_.head = plan_.embedding;
    else
      all(plan_.head);
    for (layer_plan& layer : layers_) {
      for (tensor_place* tensor : {&layer.query, &layer.key, &layer.value, &layer.output,
                                   &layer.router, &layer.shared_gate_up, &layer.shared_down})
        all(*tensor);
      if (!layer.ffn.is_dense()) continue;
      all(layer.gate_up);
      all(layer.down);
    }
    plan_.matrix_elements = next;
    for (layer_plan& layer : layers_)
      for (tensor_place* tensor :
           {&layer.attention_norm, &layer.ffn_norm, &layer.query_norm, &layer.key_norm})
        all(*tensor);
    all(plan_.final_norm);
    plan_.elements = next;
  }
  rank_plan(const rank_plan&) = delete;
  rank_plan& operator=(const rank_plan&) = delete;

  const model_plan& plan() const { return plan_; }
  /// [0, expert_elements()) are the experts of this rank; 0 where every rank has all of them.
  std::int64_t expert_elements() const { return expert_elements_; }

 private:
  std::vector<layer_plan> layers_;
  model_plan plan_;
  std::int64_t expert_elements_ = 0;
};

/// The whole of it, the same on every rank.
class rank_layout {
 public:
  /// @throws smelt::error where an expert rank would be left without an expert of some layer.
  rank_layout(const model_plan& whole, const grid_shape& grid, bool sharded_optimizer)
      : whole_(whole), grid_(grid), sharded_(sharded_optimizer) {
    for (const layer_plan& layer : whole.layers)
      if (!layer.ffn.is_dense()) grid.check_experts(layer.ffn.experts);
    for (std::int64_t rank = 0; rank < grid.expert_ranks; ++rank)
      plans_.push_back(std::make_unique<rank_plan>(whole, rank, grid.expert_ranks));
  }

  const grid_shape& grid() const { return grid_; }
  bool sharded_optimizer() const { return sharded_; }
  const model_plan& whole() const { return whole_; }
  const rank_plan& of(std::int64_t expert_rank) const {
    return *plans_[static_cast<std::size_t>(expert_rank)];
  }

  /// Calls visit(name, whole place, parts) for every tensor of the model; the parts cover it once,
  /// in ascending order.
  template <class Visit>
  void for_each_tensor_part(kept_array what, Visit&& visit) const {
    // Every plan has the tensors in the same order.
    std::vector<std::vector<tensor_place>> places(plans_.size());
    for (std::size_t i = 0; i < plans_.size(); ++i)
      for_each_tensor(plans_[i]->plan(), [&](const std::string&, const tensor_place& place) {
        places[i].push_back(place);
      });
    std::size_t index = 0;
    for_each_tensor(whole_, [&](const std::string& name, const tensor_place& place) {
      std::vector<tensor_part> parts;
      for (std::size_t i = 0; i < plans_.size(); ++i) {
        const tensor_place& here = places[i][index];
        // What every rank has whole is written by the first.
        if (i > 0 && here.count() == place.count()) break;
        add_parts(what, static_cast<std::int64_t>(i), place, here, parts);
      }
      visit(name, place, parts);
      ++index;
    });
  }

  /// The same for what one rank holds of each tensor, which may be nothing.
  template <class Visit>
  void for_each_part_of(std::int64_t rank, kept_array what, Visit&& visit) const {
    const std::int64_t expert_rank = rank % grid_.expert_ranks;
    std::vector<tensor_place> places;
    for_each_tensor(of(expert_rank).plan(), [&](const std::string&, const tensor_place& place) {
      places.push_back(place);
    });
    std::size_t index = 0;
    for_each_tensor(whole_, [&](const std::string& name, const tensor_place& place) {
      const tensor_place& here = places[index++];
      std::vector<tensor_part> parts;
      if (what == kept_array::weights || !sharded_) {
        parts.push_back({rank, here.origin - place.origin, here.count(), here.offset});
      } else {
        add_parts(what, expert_rank, place, here, parts);
        std::erase_if(parts, [&](const tensor_part& part) { return part.rank != rank; });
      }
      visit(name, place, parts);
    });
  }

 private:
  // The part of one expert rank, cut where the optimizer's shards meet.
  void add_parts(kept_array what, std::int64_t expert_rank, const tensor_place& whole,
                 const tensor_place& here, std::vector<tensor_part>& parts) const {
    const std::int64_t first = here.origin - whole.origin;
    if (what == kept_array::weights || !sharded_) {
      parts.push_back({expert_rank, first, here.count(), here.offset});
      return;
    }
    const rank_plan& mine = of(expert_rank);
    const bool is_expert = here.offset < mine.expert_elements();
    const element_range group = is_expert
                                    ? element_range{0, mine.expert_elements()}
                                    : element_range{mine.expert_elements(), mine.plan().elements};
    const std::int64_t holders = is_expert ? grid_.replicas : grid_.ranks();
    for (std::int64_t holder = 0; holder < holders; ++holder) {
      const element_range shard = shards{group.count(), holders}.of(holder);
      const std::int64_t begin = std::max(here.offset, group.begin + shard.begin);
      const std::int64_t end = std::min(here.offset + here.count(), group.begin + shard.end);
      if (begin >= end) continue;
      const std::int64_t rank = is_expert ? holder * grid_.expert_ranks + expert_rank : holder;
      // The range is as long on every rank that holds it, but begins behind that rank's experts.
      const std::int64_t range_begin =
          is_expert ? 0 : of(rank % grid_.expert_ranks).expert_elements();
      parts.push_back(
          {rank, first + begin - here.offset, end - begin, range_begin + begin - group.begin});
    }
  }

  model_plan whole_;
  grid_shape grid_;
  bool sharded_;
  std::vector<std::unique_ptr<rank_plan>> plans_;
};

}  // namespace smelt
