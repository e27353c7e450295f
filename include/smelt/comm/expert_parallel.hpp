// SPDX-License-Identifier: Apache-2.0
//
// Expert parallelism: copies of tokens travel to the rank that holds their expert, and back.
//
//   plan       from this rank's copies per expert: who sends how many rows to whom
//   dispatch   rows [copies, width] sorted by expert  ->  received [received(), width]
//   combine    received [received(), width]  ->  rows [copies, width], where each came from
//
// Forward dispatches activations and combines outputs; backward dispatches the gradient of the
// outputs and combines that of the activations: the same two calls, four exchanges per visit.
//
// Received rows are sorted by expert, then by the rank they come from, then as they lay there. That
// is the order in which one rank would have sorted the tokens of all ranks, so an expert sees the
// same rows in the same order on any number of ranks. A rank may send nothing, receive nothing, or
// hold no token; counts are exchanged anew in each plan.
//
// Experts lie in blocks, ceil(E / ranks) on each (shards in comm/collectives.hpp). Sent by one rank
// and exchange: width elements of every copy whose expert is elsewhere, as budget/traffic.hpp has
// it; the counts of a plan are not in there. Source: dispatch and combine as in GShard.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/error.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

/// The exchange of one MoE visit over the expert ranks of a grid. Keeps its memory from plan to
/// plan, so it allocates only where more rows arrive than ever before.
template <class Engine, class Policy>
class expert_exchange {
 public:
  /// `ranks` is a grid's experts() and must outlive the exchange. Every rank gives the same number
  /// of experts. Exchanges that never run at the same time may share the memory of rows under way.
  expert_exchange(
      Engine& ranks, std::int64_t experts,
      std::shared_ptr<buffer_of<Policy>> travelling = std::make_shared<buffer_of<Policy>>())
      : ranks_(ranks),
        owners_{experts, ranks.size()},
        own_(owners_.of(ranks.rank())),
        count_lengths_(size()),
        own_lengths_(size(), own_.count()),
        incoming_(size() * at(own_.count())),
        sent_rows_(size()),
        received_rows_(size()),
        sent_elements_(size()),
        received_elements_(size()),
        offsets_(at(own_.count()) + 1),
        travelling_(std::move(travelling)) {
    if (experts < 1)
      throw error("expert_exchange: expected at least 1 expert, found " + std::to_string(experts));
    for (std::int64_t rank = 0; rank < ranks.size(); ++rank)
      count_lengths_[at(rank)] = owners_.of(rank).count();
  }

  /// The experts that lie here.
  const element_range& own_experts() const { return own_; }
  /// Rows of the last plan: those that this rank gave, and those that its experts get.
  std::int64_t sent() const { return sent_; }
  std::int64_t received() const { return offsets_.back(); }
  /// Where the rows of each own expert begin among the received: [own experts + 1].
  const std::vector<std::int64_t>& offsets() const { return offsets_; }

  /// Tells every rank how many rows it will get; counts [experts] are this rank's copies, in the
  /// host's memory, as is all that a plan knows: `run` is a policy of the host.
  template <class Compute>
  void plan(const host<Compute>& run, const std::int64_t* counts) {
    for (std::int64_t e = 0; e < owners_.count; ++e)
      if (counts[e] < 0)
        throw error("expert_exchange: expected 0 or more copies for expert " + std::to_string(e) +
                    ", found " + std::to_string(counts[e]));
    ranks_.all_to_all(run, counts, count_lengths_, incoming_.data(), own_lengths_);
    sent_ = 0;
    for (std::int64_t rank = 0; rank < ranks_.size(); ++rank) {
      std::int64_t& leaving = sent_rows_[at(rank)] = 0;
      const element_range theirs = owners_.of(rank);
      for (std::int64_t e = theirs.begin; e < theirs.end; ++e) leaving += counts[e];
      sent_ += leaving;
      std::int64_t& coming = received_rows_[at(rank)] = 0;
      for (std::int64_t e = 0; e < own_.count(); ++e) coming += incoming(rank, e);
    }
    offsets_[0] = 0;
    for (std::int64_t e = 0; e < own_.count(); ++e) {
      offsets_[at(e) + 1] = offsets_[at(e)];
      for (std::int64_t rank = 0; rank < ranks_.size(); ++rank)
        offsets_[at(e) + 1] += incoming(rank, e);
    }
  }

  /// rows [sent(), width], sorted by expert, to received_rows [received(), width].
  template <sent_element T>
  void dispatch(const Policy& run, const T* rows, std::int64_t width, T* received_rows) {
    T* arrived = prepare<T>(run, width);
    ranks_.all_to_all(run, rows, sent_elements_, arrived, received_elements_);
    for_each_part(run, [&](std::int64_t by_rank, std::int64_t by_expert, std::int64_t count) {
      copy(run, static_cast<const T*>(arrived) + by_rank * width, count * width,
           received_rows + by_expert * width);
    });
  }

  /// The way back: received_rows [received(), width] to rows [sent(), width], overwritten.
  template <sent_element T>
  void combine(const Policy& run, const T* received_rows, std::int64_t width, T* rows) {
    T* leaving = prepare<T>(run, width);
    for_each_part(run, [&](std::int64_t by_rank, std::int64_t by_expert, std::int64_t count) {
      copy(run, received_rows + by_expert * width, count * width, leaving + by_rank * width);
    });
    ranks_.all_to_all(run, static_cast<const T*>(leaving), received_elements_, rows,
                      sent_elements_);
  }

 private:
  static constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  std::size_t size() const { return at(ranks_.size()); }
  std::int64_t incoming(std::int64_t rank, std::int64_t expert) const {
    return incoming_[at(rank * own_.count() + expert)];
  }

  // Lengths in elements, and memory for the rows as they travel: sorted by rank, then by expert.
  template <class T>
  T* prepare(const Policy& run, std::int64_t width) {
    if (width < 1)
      throw error("expert_exchange: expected rows of at least 1 element, found " +
                  std::to_string(width));
    for (std::size_t rank = 0; rank < size(); ++rank) {
      sent_elements_[rank] = sent_rows_[rank] * width;
      received_elements_[rank] = received_rows_[rank] * width;
    }
    const std::int64_t bytes = received() * width * static_cast<std::int64_t>(sizeof(T));
    if (travelling_->bytes() < bytes)
      *travelling_ = allocate(run, aligned_bytes(bytes), "rows of other ranks");
    return reinterpret_cast<T*>(travelling_->data());
  }

  // Calls move(first row in the order of travel, first row by expert, rows) for every pair of a
  // rank and an own expert. A device copies in stream order, so there one thread asks.
  template <class Move>
  void for_each_part(const Policy& run, Move&& move) const {
    const auto parts_of = [&](std::int64_t expert, std::int64_t) {
      std::int64_t by_expert = offsets_[at(expert)];
      std::int64_t of_rank = 0;
      for (std::int64_t rank = 0; rank < ranks_.size(); ++rank) {
        std::int64_t by_rank = of_rank;
        for (std::int64_t e = 0; e < expert; ++e) by_rank += incoming(rank, e);
        if (incoming(rank, expert) > 0) move(by_rank, by_expert, incoming(rank, expert));
        by_expert += incoming(rank, expert);
        of_rank += received_rows_[at(rank)];
      }
    };
    if constexpr (requires { run.threads(); })
      for_each_block(run, own_.count(), 1, parts_of);
    else
      for (std::int64_t expert = 0; expert < own_.count(); ++expert) parts_of(expert, 0);
  }

  Engine& ranks_;
  shards owners_;
  element_range own_;
  std::vector<std::int64_t> count_lengths_, own_lengths_;  // of the exchange of counts
  std::vector<std::int64_t> incoming_;                     // [ranks, own experts]
  std::vector<std::int64_t> sent_rows_, received_rows_;    // [ranks]
  std::vector<std::int64_t> sent_elements_, received_elements_;
  std::vector<std::int64_t> offsets_;
  std::int64_t sent_ = 0;
  std::shared_ptr<buffer_of<Policy>> travelling_;
};

}  // namespace smelt
