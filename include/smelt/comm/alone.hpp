// SPDX-License-Identifier: Apache-2.0
//
// alone: the engine of one rank. The sum over one rank is what is there, and nothing is sent.
//
// A program written for several ranks runs on this one unchanged, with the same checks of its
// arguments and without a library of messages. It reaches the memory of every policy.
#pragma once

#include <cstdint>
#include <span>

#include "smelt/comm/collectives.hpp"
#include "smelt/exec/buffer.hpp"

namespace smelt {

/// Free of state but a counter that stays 0; as many of them as a program likes.
class alone {
 public:
  /// A sum under way; here always finished.
  template <summed_element T>
  class pending {
   public:
    bool advance() { return true; }
    void finish() {}
  };

  std::int64_t rank() const { return 0; }
  std::int64_t size() const { return 1; }
  const char* name() const { return "alone"; }
  /// Nothing, ever.
  const sent_bytes& sent() const { return sent_; }

  /// Nobody to wait for.
  void barrier() {}

  /// Sums of one term, gathers of one shard, and a root that has what it sends: the data stay.
  template <class Policy, summed_element T>
  void all_reduce_sum(const Policy&, T*, std::int64_t count) {
    detail::expect_count(collective::all_reduce_sum, count);
  }
  template <class Policy, summed_element T>
  void begin_all_reduce_sum(const Policy&, T*, std::int64_t count, pending<T>&, std::int64_t = 0) {
    detail::expect_count(collective::all_reduce_sum, count);
  }
  template <class Policy, summed_element T>
  void reduce_scatter_sum(const Policy&, T*, std::int64_t count) {
    detail::expect_count(collective::reduce_scatter_sum, count);
  }
  template <class Policy, sent_element T>
  void all_gather(const Policy&, T*, std::int64_t count) {
    detail::expect_count(collective::all_gather, count);
  }
  template <class Policy, sent_element T>
  void broadcast(const Policy&, T*, std::int64_t count, std::int64_t root) {
    detail::expect_count(collective::broadcast, count);
    detail::expect_root(root, 1);
  }
  /// What the rank sends to itself arrives.
  template <class Policy, sent_element T>
  void all_to_all(const Policy& run, const T* send, std::span<const std::int64_t> send_counts,
                  T* receive, std::span<const std::int64_t> receive_counts) {
    detail::expect_counts(send_counts, receive_counts, 0, 1);
    copy(run, send, send_counts[0], receive);
  }

  /// The part of the ranks that gives the same color: itself.
  alone split(std::int64_t, std::int64_t) const { return alone(); }

 private:
  sent_bytes sent_{};
};

static_assert(collectives<alone, host<float>>);

}  // namespace smelt
