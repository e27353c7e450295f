// SPDX-License-Identifier: Apache-2.0
//
// mpi_sum: a sum over ranks under way, and the two exchanges it is made of.
//
//   check    every rank's call, to everybody (where the engine checks calls)
//   pieces   rank q sends shard s of its data to rank s; (r - 1) n / r elements
//   adding   rank s adds the pieces of its shard up in the order of the ranks
//   shards   rank s sends its shard, now the sum, to everybody; (r - 1) n / r elements
//
// Nothing waits between the phases: advance() takes the next one when the messages are there. MPI
// moves messages inside of its own calls only, so a program that overlaps a sum with work calls
// advance() now and then; whoever waits for anything else advances it as well.
// Scratch: r - 1 pieces of a shard, kept for the next sum.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "smelt/comm/mpi_channel.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/parallel.hpp"

namespace smelt::detail {

/// Pieces of a reduction: mine from everybody, one behind the other in `pieces`, theirs to them.
/// part(rank) says which elements of the data are a rank's.
template <class T, class Part>
void post_pieces(mpi_channel& channel, mpi_transfer& transfer, const mpi_call& call, const T* data,
                 T* pieces, Part&& part) {
  const std::int64_t mine = element_range(part(channel.rank())).count();
  for (std::int64_t peer = 0; peer < channel.size(); ++peer) {
    if (peer == channel.rank()) continue;
    channel.receive(transfer, call, pieces, mine, peer, mpi_phase::pieces);
    pieces += mine;
    const element_range theirs = part(peer);
    channel.send(transfer, call, data + theirs.begin, theirs.count(), peer, mpi_phase::pieces);
  }
}

/// Every rank's shard to everybody, in place.
template <class T>
void post_shards(mpi_channel& channel, mpi_transfer& transfer, const mpi_call& call, T* data,
                 std::int64_t count) {
  const shards parts{count, channel.size()};
  const element_range mine = parts.of(channel.rank());
  for (std::int64_t peer = 0; peer < channel.size(); ++peer) {
    const element_range theirs = parts.of(peer);
    channel.receive(transfer, call, data + theirs.begin, theirs.count(), peer, mpi_phase::shards);
    channel.send(transfer, call, data + mine.begin, mine.count(), peer, mpi_phase::shards);
  }
}

/// own[i] = ((x0[i] + x1[i]) + x2[i]) + ..., `own` being this rank's term and `pieces` the others'.
template <class T>
void sum_in_rank_order(const mpi_channel& channel, int threads, T* own, const T* pieces,
                       std::int64_t count) {
  if (channel.size() == 1) return;
  constexpr std::int64_t block = 2048;
  for_each_block(threads, count, block, [&](std::int64_t begin, std::int64_t end) {
    std::array<T, static_cast<std::size_t>(block)> total;
    const auto term = [&](std::int64_t rank) -> const T* {
      if (rank == channel.rank()) return own + begin;
      return pieces + (rank > channel.rank() ? rank - 1 : rank) * count + begin;
    };
    // From the first term and not from 0, which would turn a sum of -0 into 0.
    std::copy_n(term(0), end - begin, total.begin());
    for (std::int64_t rank = 1; rank < channel.size(); ++rank) {
      const T* values = term(rank);
      for (std::int64_t i = 0; i < end - begin; ++i)
        total[static_cast<std::size_t>(i)] += values[i];
    }
    std::copy_n(total.begin(), end - begin, own + begin);
  });
}

/// The engine's scratch: memory for `count` elements, made larger where it is too small.
template <class T>
T* grown(host_buffer& memory, std::int64_t count) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  if (memory.bytes() < bytes) memory = host_buffer(aligned_bytes(bytes), "sums over ranks");
  return reinterpret_cast<T*>(memory.data());
}

/// One sum; see pending<T> in comm/collectives.hpp.
template <summed_element T>
class mpi_sum final : private mpi_progress {
 public:
  mpi_sum() = default;
  mpi_sum(const mpi_sum&) = delete;
  mpi_sum& operator=(const mpi_sum&) = delete;
  /// MPI still writes into memory that must not go away: waits, unless an error ends the program
  /// anyway.
  ~mpi_sum() {
    if (phase_ == phase::finished) return;
    if (std::uncaught_exceptions() == 0) finish();
    channel_->dismiss(*this);
  }

  /// Posts what comes first and returns; data [count] belongs to the sum until it is finished.
  void begin(mpi_channel& channel, int threads, T* data, std::int64_t count, std::int64_t part) {
    finish();
    channel_ = &channel;
    threads_ = threads;
    data_ = data;
    count_ = count;
    call_ = channel.next_call<T>(collective::all_reduce_sum, count, part);
    if (channel.size() == 1) return;
    channel.enroll(*this);
    calls_.resize(static_cast<std::size_t>(channel.size()));
    if (channel.options().check_calls) {
      channel.post_call(transfer_, call_, calls_);
      phase_ = phase::check;
    } else {
      begin_pieces();
    }
    advance();
  }

  /// True when the sum is there. @throws smelt::agreed_error where the ranks called for other sums.
  bool advance() override {
    while (phase_ != phase::finished) {
      if (!transfer_.done()) return false;
      if (phase_ == phase::check) {
        // Should it throw, nothing of this sum is under way any more.
        end();
        mpi_channel::expect_same_call(calls_);
        channel_->enroll(*this);
        begin_pieces();
      } else if (phase_ == phase::pieces) {
        const element_range mine = shards{count_, channel_->size()}.of(channel_->rank());
        // The sum is complete in the own shard before anybody hears of it.
        sum_in_rank_order(*channel_, threads_, data_ + mine.begin,
                          reinterpret_cast<const T*>(scratch_.data()), mine.count());
        post_shards(*channel_, transfer_, call_, data_, count_);
        phase_ = phase::shards;
      } else {
        end();
      }
    }
    return true;
  }

  /// Waits; ends the job where a rank does not answer.
  void finish() {
    while (!advance()) channel_->wait(transfer_, call_);
  }

 private:
  enum class phase { check, pieces, shards, finished };

  // Before an error too, as nothing of this sum is under way then.
  void end() {
    phase_ = phase::finished;
    channel_->dismiss(*this);
  }
  // A shard of the bucket each, so that every rank adds up an equal part of it.
  void begin_pieces() {
    const shards parts{count_, channel_->size()};
    T* pieces = grown<T>(scratch_, parts.of(channel_->rank()).count() * (channel_->size() - 1));
    post_pieces(*channel_, transfer_, call_, data_, pieces,
                [&](std::int64_t rank) { return parts.of(rank); });
    phase_ = phase::pieces;
  }

  mpi_channel* channel_ = nullptr;
  int threads_ = 1;
  T* data_ = nullptr;
  std::int64_t count_ = 0;
  mpi_call call_{};  // its number is in the tags of all messages
  phase phase_ = phase::finished;
  mpi_transfer transfer_;
  host_buffer scratch_;
  std::vector<mpi_call> calls_;  // of all ranks
};

}  // namespace smelt::detail
