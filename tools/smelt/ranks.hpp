// SPDX-License-Identifier: Apache-2.0
//
// ranks: the engine of the program, one rank or those of MPI, decided when it starts.
//
// The collectives of comm/collectives.hpp, each passed on to the engine that is there. So a trainer
// is compiled for one type of engine and not for each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "smelt/comm/alone.hpp"
#include "smelt/comm/collectives.hpp"
#if defined(SMELT_TOOL_MPI)
#include "smelt/mpi.hpp"
#endif

namespace smelt_tool {

#if defined(SMELT_TOOL_MPI)
using several_ranks = smelt::mpi;
#else
using several_ranks = smelt::alone;
#endif

class ranks {
 public:
  /// A sum under way; of one rank there is nothing to wait for, and it is as if never begun.
  template <smelt::summed_element T>
  using pending = several_ranks::pending<T>;

  /// One rank.
  ranks() = default;
  /// Those of an engine, which must outlive this.
  explicit ranks(several_ranks& all) : several_(&all) {}

  std::int64_t rank() const { return several_ != nullptr ? several_->rank() : 0; }
  std::int64_t size() const { return several_ != nullptr ? several_->size() : 1; }
  const char* name() const { return several_ != nullptr ? several_->name() : alone_.name(); }
  const smelt::sent_bytes& sent() const {
    return several_ != nullptr ? several_->sent() : alone_.sent();
  }
  ranks split(std::int64_t color, std::int64_t key) {
    ranks part;
    if (several_ == nullptr) return part;
    part.owned_ = std::make_unique<engine_of_part>(*several_, color, key);
    part.several_ = &part.owned_->engine;
    return part;
  }

  void barrier() {
    with([](auto& to) { to.barrier(); });
  }
  template <class Policy, smelt::summed_element T>
  void all_reduce_sum(const Policy& run, T* data, std::int64_t count) {
    with([&](auto& to) { to.all_reduce_sum(run, data, count); });
  }
  template <class Policy, smelt::summed_element T>
  void reduce_scatter_sum(const Policy& run, T* data, std::int64_t count) {
    with([&](auto& to) { to.reduce_scatter_sum(run, data, count); });
  }
  template <class Policy, smelt::sent_element T>
  void all_gather(const Policy& run, T* data, std::int64_t count) {
    with([&](auto& to) { to.all_gather(run, data, count); });
  }
  template <class Policy, smelt::sent_element T>
  void broadcast(const Policy& run, T* data, std::int64_t count, std::int64_t root) {
    with([&](auto& to) { to.broadcast(run, data, count, root); });
  }
  template <class Policy, smelt::sent_element T>
  void all_to_all(const Policy& run, const T* send, std::span<const std::int64_t> send_counts,
                  T* receive, std::span<const std::int64_t> receive_counts) {
    with([&](auto& to) { to.all_to_all(run, send, send_counts, receive, receive_counts); });
  }
  template <class Policy, smelt::summed_element T>
  void begin_all_reduce_sum(const Policy& run, T* data, std::int64_t count, pending<T>& under_way,
                            std::int64_t part = 0) {
    // The sum over one rank is what is there.
    if (several_ != nullptr)
      several_->begin_all_reduce_sum(run, data, count, under_way, part);
    else
      smelt::detail::expect_count(smelt::collective::all_reduce_sum, count);
  }

 private:
  template <class Use>
  void with(Use&& use) {
    if (several_ != nullptr)
      use(*several_);
    else
      use(alone_);
  }

  // An engine neither copies nor moves, so it is made in its place.
  struct engine_of_part {
    engine_of_part(several_ranks& whole, std::int64_t color, std::int64_t key)
        : engine(whole.split(color, key)) {}
    several_ranks engine;
  };

  smelt::alone alone_;
  std::unique_ptr<engine_of_part> owned_;  // where this is a part of others
  several_ranks* several_ = nullptr;
};

static_assert(smelt::collectives<ranks, smelt::host<float>>);

}  // namespace smelt_tool
