// SPDX-License-Identifier: Apache-2.0
//
// The collectives as NCCL calls on the engine's stream, for device memory; and for memory of the
// host, in pieces through device memory of the engine.
//
//   all_reduce       ncclAllReduce in place
//   reduce_scatter   ncclReduceScatter where the ranks divide the count, otherwise an ncclReduce of
//                    each shard to its rank, in one group
//   all_gather       ncclAllGather, otherwise an ncclBroadcast of each shard, in one group
//   broadcast        ncclBroadcast in place
//   all_to_all       ncclSend and ncclRecv with every other rank, in one group; own part copied
//
// NCCL wants shards of one length; the groups give the last rank fewer, or none, without a copy of
// the array. Host data lie in equal slots of the staging memory, so that a piece has one length on
// every rank; what a short shard leaves of its slot travels unread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "smelt/comm/nccl_channel.cuh"

namespace smelt::detail {

/// Bytes that one rank of a ring sends for a sum or a gather of its `own` share of `count`.
constexpr std::int64_t ring_scatter(std::int64_t count, std::int64_t own) {
  return count - own;
}
constexpr std::int64_t ring_gather(std::int64_t own, std::int64_t ranks) {
  return own * (ranks - 1);
}

/// Device memory: what was asked of the engine's stream before comes first.
class nccl_exchange {
 public:
  explicit nccl_exchange(nccl_channel& channel) : channel_(channel) {}

  template <class T>
  void all_reduce(T* data, std::int64_t count) {
    if (idle(count)) return;
    const std::int64_t own = shard_of(count).count();
    sends<T>(collective::all_reduce_sum,
             ring_scatter(count, own) + ring_gather(own, channel_.size()));
    channel_.watched<T>(collective::all_reduce_sum, count, [&](cudaStream_t stream) {
      channel_.expect(
          ncclAllReduce(data, data, at(count), nccl_type<T>, ncclSum, channel_.comm(), stream),
          "ncclAllReduce");
    });
  }

  template <class T>
  void reduce_scatter(T* data, std::int64_t count) {
    if (idle(count)) return;
    const element_range own = shard_of(count);
    sends<T>(collective::reduce_scatter_sum, ring_scatter(count, own.count()));
    channel_.watched<T>(collective::reduce_scatter_sum, count, [&](cudaStream_t stream) {
      if (count % channel_.size() == 0) {
        channel_.expect(ncclReduceScatter(data, data + own.begin, at(own.count()), nccl_type<T>,
                                          ncclSum, channel_.comm(), stream),
                        "ncclReduceScatter");
        return;
      }
      for_each_shard(count, [&](int rank, const element_range& shard) {
        T* part = data + shard.begin;
        channel_.expect(ncclReduce(part, part, at(shard.count()), nccl_type<T>, ncclSum, rank,
                                   channel_.comm(), stream),
                        "ncclReduce");
      });
    });
  }

  template <class T>
  void all_gather(T* data, std::int64_t count) {
    if (idle(count)) return;
    const element_range own = shard_of(count);
    sends<T>(collective::all_gather, ring_gather(own.count(), channel_.size()));
    channel_.watched<T>(collective::all_gather, count, [&](cudaStream_t stream) {
      if (count % channel_.size() == 0) {
        channel_.expect(ncclAllGather(data + own.begin, data, at(own.count()), nccl_type<T>,
                                      channel_.comm(), stream),
                        "ncclAllGather");
        return;
      }
      for_each_shard(count, [&](int rank, const element_range& shard) {
        T* part = data + shard.begin;
        channel_.expect(ncclBroadcast(part, part, at(shard.count()), nccl_type<T>, rank,
                                      channel_.comm(), stream),
                        "ncclBroadcast");
      });
    });
  }

  template <class T>
  void broadcast(T* data, std::int64_t count, std::int64_t root) {
    if (idle(count)) return;
    if (channel_.rank() == root)
      sends<T>(collective::broadcast, ring_gather(count, channel_.size()));
    channel_.watched<T>(collective::broadcast, count, [&](cudaStream_t stream) {
      channel_.expect(ncclBroadcast(data, data, at(count), nccl_type<T>, static_cast<int>(root),
                                    channel_.comm(), stream),
                      "ncclBroadcast");
    });
  }

  /// A message with every other rank: leaving(peer) and coming(peer) are spans, perhaps empty ones.
  template <class T, class Leaving, class Coming>
  void exchange(Leaving&& leaving, Coming&& coming) {
    std::int64_t elements = 0;
    for (std::int64_t peer = 0; peer < channel_.size(); ++peer)
      if (peer != channel_.rank()) elements += static_cast<std::int64_t>(leaving(peer).size());
    sends<T>(collective::all_to_all, elements);
    channel_.watched<T>(collective::all_to_all, elements, [&](cudaStream_t stream) {
      channel_.grouped([&] {
        for (std::int64_t peer = 0; peer < channel_.size(); ++peer) {
          if (peer == channel_.rank()) continue;
          const std::span<const T> out = leaving(peer);
          const std::span<T> in = coming(peer);
          // Nothing is sent where there is nothing: both ends know the length.
          if (!out.empty())
            channel_.expect(ncclSend(out.data(), out.size(), nccl_type<T>, static_cast<int>(peer),
                                     channel_.comm(), stream),
                            "ncclSend");
          if (!in.empty())
            channel_.expect(ncclRecv(in.data(), in.size(), nccl_type<T>, static_cast<int>(peer),
                                     channel_.comm(), stream),
                            "ncclRecv");
        }
      });
    });
  }

  /// Returns when every rank has called it.
  void barrier() {
    if (channel_.size() == 1) return;
    auto* meeting = reinterpret_cast<std::int32_t*>(channel_.line().staging().data());
    channel_.quiet();
    sends<std::int32_t>(collective::barrier, channel_.size() - 1);
    channel_.watched<std::int32_t>(collective::barrier, 1, [&](cudaStream_t stream) {
      channel_.expect(
          ncclAllReduce(meeting, meeting, 1, ncclInt32, ncclMax, channel_.comm(), stream),
          "ncclAllReduce");
    });
    wait();
  }

 protected:
  static constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  // Alone there is nobody to talk to, and the data are what they should be.
  bool idle(std::int64_t count) const { return count == 0 || channel_.size() == 1; }
  element_range shard_of(std::int64_t count) const {
    return shards{count, channel_.size()}.of(channel_.rank());
  }
  void wait() {
    expect_cuda(cudaStreamSynchronize(channel_.line().stream()), "cudaStreamSynchronize");
  }

  nccl_channel& channel_;

 private:
  template <class T>
  void sends(collective kind, std::int64_t elements) {
    channel_.count_sent(kind, elements * static_cast<std::int64_t>(sizeof(T)));
  }
  template <class Call>
  void for_each_shard(std::int64_t count, Call&& call) {
    channel_.grouped([&] {
      for (std::int64_t rank = 0; rank < channel_.size(); ++rank) {
        const element_range shard = shards{count, channel_.size()}.of(rank);
        if (shard.count() > 0) call(static_cast<int>(rank), shard);
      }
    });
  }
};

/// Host memory: the data of a call are there when it returns.
class nccl_staged : private nccl_exchange {
 public:
  // A graph may be at work on the same communicator; its calls come first.
  explicit nccl_staged(nccl_channel& channel) : nccl_exchange(channel) {
    if (channel_.size() > 1) channel_.quiet();
  }

  template <class T>
  void all_reduce(T* data, std::int64_t count) {
    in_place(data, idle(count) ? 0 : count,
             [&](T* piece, std::int64_t length) { nccl_exchange::all_reduce(piece, length); });
  }
  template <class T>
  void broadcast(T* data, std::int64_t count, std::int64_t root) {
    in_place(data, idle(count) ? 0 : count,
             [&](T* piece, std::int64_t length) { nccl_exchange::broadcast(piece, length, root); });
  }

  template <class T>
  void reduce_scatter(T* data, std::int64_t count) {
    for_each_slice<T>(count, [&](T* slots, std::int64_t slot, auto&& part_of) {
      for (std::int64_t rank = 0; rank < channel_.size(); ++rank)
        up(data, part_of(rank), slots + rank * slot);
      nccl_exchange::reduce_scatter(slots, slot * channel_.size());
      down(slots + channel_.rank() * slot, part_of(channel_.rank()), data);
    });
  }
  template <class T>
  void all_gather(T* data, std::int64_t count) {
    for_each_slice<T>(count, [&](T* slots, std::int64_t slot, auto&& part_of) {
      up(data, part_of(channel_.rank()), slots + channel_.rank() * slot);
      nccl_exchange::all_gather(slots, slot * channel_.size());
      for (std::int64_t rank = 0; rank < channel_.size(); ++rank)
        if (rank != channel_.rank()) down(slots + rank * slot, part_of(rank), data);
    });
  }

  /// Round k exchanges piece k of every pair; a pair whose pieces are through is left out, and a
  /// rank without any left stops.
  template <class T>
  void all_to_all(const T* send, std::span<const std::int64_t> send_counts, T* receive,
                  std::span<const std::int64_t> receive_counts) {
    if (channel_.size() == 1) return;
    const std::int64_t ranks = channel_.size(), own = channel_.rank();
    const std::int64_t slot = slot_elements<T>(2 * ranks);
    T* leaving = slots<T>();
    T* coming = leaving + ranks * slot;
    std::int64_t longest = 0;
    for (std::int64_t peer = 0; peer < ranks; ++peer)
      if (peer != own)
        longest = std::max({longest, send_counts[at(peer)], receive_counts[at(peer)]});
    for (std::int64_t from = 0; from < longest; from += slot) {
      // Of `count` elements that begin at `begin`: this round's.
      const auto piece = [&](std::int64_t begin, std::int64_t count) {
        return element_range{begin + std::min(from, count), begin + std::min(from + slot, count)};
      };
      const auto of_all = [&](std::span<const std::int64_t> counts, auto&& copy) {
        std::int64_t begin = 0;
        for (std::int64_t peer = 0; peer < ranks; begin += counts[at(peer++)])
          if (peer != own) copy(peer, piece(begin, counts[at(peer)]));
      };
      of_all(send_counts, [&](std::int64_t peer, const element_range& part) {
        up(send, part, leaving + peer * slot);
      });
      exchange<T>(
          [&](std::int64_t peer) {
            return std::span<const T>(leaving + peer * slot,
                                      at(piece(0, send_counts[at(peer)]).count()));
          },
          [&](std::int64_t peer) {
            return std::span<T>(coming + peer * slot,
                                at(piece(0, receive_counts[at(peer)]).count()));
          });
      of_all(receive_counts, [&](std::int64_t peer, const element_range& part) {
        down(coming + peer * slot, part, receive);
      });
      wait();
    }
  }

 private:
  // Elements of the staging memory for each of `parts`.
  template <class T>
  std::int64_t slot_elements(std::int64_t parts) const {
    const std::int64_t bytes = channel_.line().staging().bytes();
    return std::max<std::int64_t>(1, bytes / (parts * static_cast<std::int64_t>(sizeof(T))));
  }
  template <class T>
  T* slots() const {
    return reinterpret_cast<T*>(channel_.line().staging().data());
  }

  // Elements `part` of an array of the host to device memory, and back.
  template <class T>
  void up(const T* data, const element_range& part, T* device) {
    copy(device, data + part.begin, part, cudaMemcpyHostToDevice);
  }
  template <class T>
  void down(const T* device, const element_range& part, T* data) {
    copy(data + part.begin, device, part, cudaMemcpyDeviceToHost);
  }
  template <class T>
  void copy(T* to, const T* from, const element_range& part, cudaMemcpyKind kind) {
    if (part.count() > 0)
      expect_cuda(
          cudaMemcpyAsync(to, from, at(part.count()) * sizeof(T), kind, channel_.line().stream()),
          "copy of data of the host for NCCL");
  }

  template <class T, class Call>
  void in_place(T* data, std::int64_t count, Call&& call) {
    const std::int64_t slot = slot_elements<T>(1);
    for (std::int64_t from = 0; from < count; from += slot) {
      const element_range part{from, std::min(from + slot, count)};
      up(data, part, slots<T>());
      call(slots<T>(), part.count());
      down(slots<T>(), part, data);
      wait();
    }
  }
  // call(slots, elements of a slot, part_of), part_of(rank) being the rank's part of a slice.
  template <class T, class Call>
  void for_each_slice(std::int64_t count, Call&& call) {
    if (idle(count)) return;
    const shards parts{count, channel_.size()};
    const std::int64_t longest = slot_elements<T>(channel_.size());
    for (std::int64_t from = 0; from < parts.largest(); from += longest) {
      const std::int64_t slot = std::min(longest, parts.largest() - from);
      call(slots<T>(), slot, [&](std::int64_t rank) {
        const element_range shard = parts.of(rank);
        const std::int64_t begin = std::min(shard.begin + from, shard.end);
        return element_range{begin, std::min(begin + slot, shard.end)};
      });
      wait();
    }
  }
};

}  // namespace smelt::detail
