// SPDX-License-Identifier: Apache-2.0
//
// mpi: the engine of several processes with memory on the host. Meaning of the collectives and
// their bytes: comm/collectives.hpp. Start and end of a program: comm/mpi_program.hpp.
//
//   reduce_scatter  every rank sends shard s of its data to rank s, which adds the pieces up
//   all_gather      every rank sends its shard to everybody
//   all_reduce      both, bucket by bucket
//   broadcast       the root sends everything to everybody: (r - 1) n, meant for starts
//
// No scratch exceeds reduction_bucket_bytes. Timeouts and mismatches: comm/mpi_channel.hpp. The
// engine is called from one thread, in the same order on every rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "smelt/comm/collectives.hpp"
#include "smelt/comm/mpi_channel.hpp"
#include "smelt/comm/mpi_sum.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

/// Sums over long arrays go in pieces of this size; no result depends on it.
inline constexpr std::int64_t reduction_bucket_bytes = 4 << 20;

class mpi {
 public:
  template <summed_element T>
  using pending = detail::mpi_sum<T>;

  /// All ranks of the program. MPI must be initialised and outlive the engine.
  /// @throws smelt::error where it is not.
  explicit mpi(const mpi_options& options = {}) : channel_(options) {}

  std::int64_t rank() const { return channel_.rank(); }
  std::int64_t size() const { return channel_.size(); }
  const char* name() const { return "mpi"; }
  /// Since the engine was made; engines made by split count for themselves.
  const sent_bytes& sent() const { return channel_.sent(); }

  /// The ranks that give the same color, in the order of key. Every rank of this engine must call.
  mpi split(std::int64_t color, std::int64_t key) { return mpi(channel_, color, key); }

  /// Returns when every rank has called it.
  void barrier() { channel_.barrier(); }

  /// data [count] = sum over ranks, on every rank.
  template <class Compute, summed_element T>
  void all_reduce_sum(const host<Compute>& run, T* data, std::int64_t count) {
    detail::expect_count(collective::all_reduce_sum, count);
    // At least once: ranks that differ in whether there is anything to sum must meet as well.
    const std::int64_t bucket = bucket_elements<T>();
    auto& sum = sum_of(data);
    for (std::int64_t from = 0; from == 0 || from < count; from += bucket) {
      sum.begin(channel_, run.threads(), data + from, std::min(bucket, count - from), 0);
      sum.finish();
    }
  }

  /// Begins a sum of one bucket; `under_way` holds its scratch, (size - 1) / size of the data.
  template <class Compute, summed_element T>
  void begin_all_reduce_sum(const host<Compute>& run, T* data, std::int64_t count,
                            pending<T>& under_way, std::int64_t part = 0) {
    under_way.begin(channel_, run.threads(), data, count, part);
  }

  /// The same in this rank's shard of data [count]; the other shards are left as they were.
  template <class Compute, summed_element T>
  void reduce_scatter_sum(const host<Compute>& run, T* data, std::int64_t count) {
    const detail::mpi_call call = channel_.announce<T>(collective::reduce_scatter_sum, count, 0);
    const shards parts{count, size()};
    // Piece by piece of all shards alike, so that the scratch of a long array stays small.
    const std::int64_t piece = std::max<std::int64_t>(1, bucket_elements<T>() / size());
    for (std::int64_t from = 0; from < parts.largest(); from += piece) {
      const auto part = [&](std::int64_t rank) {
        const element_range shard = parts.of(rank);
        const std::int64_t begin = std::min(shard.begin + from, shard.end);
        return element_range{begin, std::min(begin + piece, shard.end)};
      };
      const element_range mine = part(rank());
      T* pieces = detail::grown<T>(scratch_, mine.count() * (size() - 1));
      detail::post_pieces(channel_, channel_.blocking(), call, data, pieces, part);
      channel_.wait(channel_.blocking(), call);
      detail::sum_in_rank_order(channel_, run.threads(), data + mine.begin, pieces, mine.count());
    }
  }

  /// data [count]: every rank's own shard, on every rank.
  template <class Compute, sent_element T>
  void all_gather(const host<Compute>&, T* data, std::int64_t count) {
    const detail::mpi_call call = channel_.announce<T>(collective::all_gather, count, 0);
    detail::post_shards(channel_, channel_.blocking(), call, data, count);
    channel_.wait(channel_.blocking(), call);
  }

  /// data [count] of the root, on every rank.
  template <class Compute, sent_element T>
  void broadcast(const host<Compute>&, T* data, std::int64_t count, std::int64_t root) {
    detail::expect_root(root, size());
    const detail::mpi_call call = channel_.announce<T>(collective::broadcast, count, root);
    constexpr auto phase = detail::mpi_phase::pieces;
    if (rank() == root)
      for (std::int64_t peer = 0; peer < size(); ++peer)
        channel_.send(channel_.blocking(), call, data, count, peer, phase);
    else
      channel_.receive(channel_.blocking(), call, data, count, root, phase);
    channel_.wait(channel_.blocking(), call);
  }

  /// Parts of send, one per rank and one behind the other, to the same place in order of receive;
  /// the two must not overlap.
  template <class Compute, sent_element T>
  void all_to_all(const host<Compute>&, const T* send, std::span<const std::int64_t> send_counts,
                  T* receive, std::span<const std::int64_t> receive_counts) {
    detail::expect_counts(send_counts, receive_counts, rank(), size());
    const detail::mpi_call call = channel_.announce<T>(collective::all_to_all, 0, 0);
    channel_.expect_pairs(send_counts, receive_counts);
    constexpr auto phase = detail::mpi_phase::pieces;
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      const std::int64_t leaving = send_counts[static_cast<std::size_t>(peer)];
      const std::int64_t coming = receive_counts[static_cast<std::size_t>(peer)];
      if (peer == rank()) std::copy_n(send, leaving, receive);
      channel_.receive(channel_.blocking(), call, receive, coming, peer, phase);
      channel_.send(channel_.blocking(), call, send, leaving, peer, phase);
      send += leaving;
      receive += coming;
    }
    channel_.wait(channel_.blocking(), call);
  }

 private:
  mpi(detail::mpi_channel& whole, std::int64_t color, std::int64_t key)
      : channel_(whole, color, key) {}

  template <class T>
  static constexpr std::int64_t bucket_elements() {
    return reduction_bucket_bytes / static_cast<std::int64_t>(sizeof(T));
  }
  // One for each type, so that their scratch is kept from call to call.
  pending<float>& sum_of(const float*) { return float_sum_; }
  pending<double>& sum_of(const double*) { return double_sum_; }
  pending<std::int64_t>& sum_of(const std::int64_t*) { return integer_sum_; }

  detail::mpi_channel channel_;  // outlives the sums, which leave it when they end
  pending<float> float_sum_;
  pending<double> double_sum_;
  pending<std::int64_t> integer_sum_;
  host_buffer scratch_;
};

static_assert(collectives<mpi, host<float>>);

}  // namespace smelt
