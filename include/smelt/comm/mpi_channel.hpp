// SPDX-License-Identifier: Apache-2.0
//
// mpi_channel: a set of ranks that compare their calls, exchange messages and wait with a limit.
//
// A collective that does not end in time prints one line with this rank, the collective and the
// ranks that did not answer, and ends the job by MPI_Abort. Ranks that call different things (kind,
// type, count, root, or one call too few) get an agreed_error that names the first one to differ
// from rank 0. What the messages mean is the business of comm/mpi.hpp.
//
// A call is compared by sending it to everybody before any of its data: kind, type, count, root and
// its number. All ranks then hold all calls and come to one verdict without another message. The
// lengths of an all_to_all differ by design, so each pair compares its own and a second round makes
// the verdict common.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/comm/mpi_transfer.hpp"

namespace smelt::detail {

/// What a message is for, within one call: ranks may be in different phases of it.
enum class mpi_phase { check = 0, pieces = 1, shards = 2 };

/// Something under way that makes progress when it is asked to.
class mpi_progress {
 public:
  virtual bool advance() = 0;

 protected:
  ~mpi_progress() = default;
};

class mpi_channel {
 public:
  /// All ranks of the program.
  /// @throws smelt::error where MPI is not initialised.
  explicit mpi_channel(const mpi_options& options) : options_(options) {
    int initialised = 0;
    expect_mpi(MPI_Initialized(&initialised), "MPI_Initialized");
    if (initialised == 0)
      throw error("mpi: expected MPI to be initialised, found it not; use run_ranks or MPI_Init");
    adopt([](MPI_Comm* made) { return MPI_Comm_dup(MPI_COMM_WORLD, made); }, "MPI_Comm_dup");
  }
  /// The ranks of `whole` that give the same color, in the order of key.
  mpi_channel(mpi_channel& whole, std::int64_t color, std::int64_t key) : options_(whole.options_) {
    whole.barrier();  // MPI's own call knows no timeout; this one names who stays away
    adopt(
        [&](MPI_Comm* made) {
          return MPI_Comm_split(whole.comm_, static_cast<int>(color), static_cast<int>(key), made);
        },
        "MPI_Comm_split");
  }
  mpi_channel(const mpi_channel&) = delete;
  mpi_channel& operator=(const mpi_channel&) = delete;
  // Freeing is collective. With an exception on its way the other ranks may be elsewhere.
  ~mpi_channel() {
    int finalised = 0;
    if (MPI_Finalized(&finalised) == MPI_SUCCESS && finalised == 0 &&
        std::uncaught_exceptions() == exceptions_)
      MPI_Comm_free(&comm_);
  }

  std::int64_t rank() const { return rank_; }
  std::int64_t size() const { return size_; }
  const sent_bytes& sent() const { return sent_; }
  const mpi_options& options() const { return options_; }
  /// Of the collective that blocks; sums under way have their own.
  mpi_transfer& blocking() { return blocking_; }

  /// The comparison itself is the barrier, so it happens whatever the options say.
  void barrier() { meet({sequence_++, number(collective::barrier), 0, 0, 0}, true); }

  /// Begins a blocking collective: compares the call with the other ranks'.
  template <sent_element T>
  mpi_call announce(collective kind, std::int64_t count, std::int64_t root) {
    const mpi_call call = next_call<T>(kind, count, root);
    meet(call, options_.check_calls);
    return call;
  }
  /// A call that is compared later, by post_call and expect_same_call.
  template <sent_element T>
  mpi_call next_call(collective kind, std::int64_t count, std::int64_t root) {
    expect_count(kind, count);
    return {sequence_++, number(kind), element_number<T>, count, root};
  }
  /// Posts this rank's call to everybody and theirs to calls [size].
  void post_call(mpi_transfer& transfer, const mpi_call& call, std::vector<mpi_call>& calls) {
    calls[at(rank_)] = call;
    for (std::int64_t peer = 0; peer < size_; ++peer) {
      receive(transfer, call, &calls[at(peer)], 1, peer, mpi_phase::check);
      send(transfer, call, &calls[at(rank_)], 1, peer, mpi_phase::check);
    }
  }
  /// Everybody has everybody's call, so all ranks come to the same verdict.
  static void expect_same_call(const std::vector<mpi_call>& calls) {
    for (std::size_t rank = 1; rank < calls.size(); ++rank)
      if (calls[rank] != calls[0])
        throw agreed_error("rank " + std::to_string(rank) + ": expected " + in_words(calls[0]) +
                           " as on rank 0, found " + in_words(calls[rank]) +
                           "; all ranks must call the same collectives in the same order");
  }

  /// Messages of one call, `count` elements; nothing where the peer is this rank. What is sent is
  /// counted here and nowhere else.
  template <class T>
  void send(mpi_transfer& transfer, const mpi_call& call, const T* data, std::int64_t count,
            std::int64_t peer, mpi_phase phase) {
    if (peer == rank_) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    transfer.send(comm_, data, bytes, peer, tag_of(call, phase));
    (phase == mpi_phase::check ? sent_.control
                               : sent_.by_kind[static_cast<std::size_t>(call.kind)]) += bytes;
  }
  template <class T>
  void receive(mpi_transfer& transfer, const mpi_call& call, T* data, std::int64_t count,
               std::int64_t peer, mpi_phase phase) {
    if (peer == rank_) return;
    transfer.receive(comm_, data, count * static_cast<std::int64_t>(sizeof(T)), peer,
                     tag_of(call, phase));
  }

  /// Checks the lengths of an all_to_all. Only the receiver of a pair can see that the two differ,
  /// so it tells the others in a second round.
  void expect_pairs(std::span<const std::int64_t> send_counts,
                    std::span<const std::int64_t> receive_counts) {
    if (!options_.check_calls || size_ == 1) return;
    // First what every rank is about to send me, then what every rank thinks of that.
    constexpr std::int64_t width = 3;  // sender or -1, sent, expected
    pair_counts_.assign(receive_counts.begin(), receive_counts.end());
    pair_verdicts_.assign(at(width * size_), -1);
    const mpi_call first = next_call<std::int64_t>(collective::all_to_all, 0, 0);
    for (std::int64_t peer = 0; peer < size_; ++peer) {
      receive(blocking_, first, &pair_counts_[at(peer)], 1, peer, mpi_phase::check);
      send(blocking_, first, &send_counts[at(peer)], 1, peer, mpi_phase::check);
    }
    wait(blocking_, first);
    std::int64_t* mine = &pair_verdicts_[at(width * rank_)];
    // Backwards, so that the lowest sender that differs is the one that stays.
    for (std::int64_t peer = size_; peer-- > 0;) {
      if (pair_counts_[at(peer)] == receive_counts[at(peer)]) continue;
      mine[0] = peer;
      mine[1] = pair_counts_[at(peer)];
      mine[2] = receive_counts[at(peer)];
    }
    const mpi_call second = next_call<std::int64_t>(collective::all_to_all, 0, 0);
    for (std::int64_t peer = 0; peer < size_; ++peer) {
      receive(blocking_, second, &pair_verdicts_[at(width * peer)], width, peer, mpi_phase::check);
      send(blocking_, second, mine, width, peer, mpi_phase::check);
    }
    wait(blocking_, second);
    for (std::int64_t peer = 0; peer < size_; ++peer) {
      const std::int64_t* found = &pair_verdicts_[at(width * peer)];
      if (found[0] < 0) continue;
      throw agreed_error("all_to_all: rank " + std::to_string(peer) + " expected " +
                         std::to_string(found[2]) + " elements of rank " +
                         std::to_string(found[0]) + ", found " + std::to_string(found[1]) +
                         "; exchange the counts first");
    }
  }

  /// What is under way advances whenever this rank waits for anything: another rank may need it
  /// before it can answer.
  void enroll(mpi_progress& what) { under_way_.push_back(&what); }
  void dismiss(mpi_progress& what) {
    const auto found = std::find(under_way_.begin(), under_way_.end(), &what);
    if (found == under_way_.end()) return;
    *found = under_way_.back();
    under_way_.pop_back();
  }

  /// Waits for messages, or ends the job.
  void wait(mpi_transfer& transfer, const mpi_call& call) {
    using clock = std::chrono::steady_clock;
    if (transfer.done()) return;
    const auto begin = clock::now();
    // Ranks that wait in vain do so together: the lowest speaks first and ends the others.
    const double limit =
        options_.timeout_seconds + 0.2 * static_cast<double>(std::min<std::int64_t>(rank_, 10));
    while (!transfer.done()) {
      const double waited = std::chrono::duration<double>(clock::now() - begin).count();
      if (waited > limit) time_out(transfer, call);
      // From the end: one that is finished leaves, and its place goes to one that was asked.
      for (std::size_t i = under_way_.size(); i-- > 0;) under_way_[i]->advance();
      // There may be more ranks than cores: a long wait leaves its core to who is waited for.
      if (waited < 2e-3)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  static constexpr std::int64_t number(collective kind) { return static_cast<std::int64_t>(kind); }

  // A communicator of our own: no message of the program's can meet one of ours.
  template <class Make>
  void adopt(Make&& make, const char* call) {
    expect_mpi(make(&comm_), call);
    expect_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0;
    int size = 0;
    expect_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
    expect_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
    rank_ = rank;
    size_ = size;
    calls_.resize(at(size_));
  }

  // Sums under way overtake each other, so the call is in the tag; MPI promises tags up to 32767.
  static int tag_of(const mpi_call& call, mpi_phase phase) {
    return static_cast<int>(call.sequence % 8192) * 4 + static_cast<int>(phase);
  }

  // Nothing to compare on one rank.
  void meet(const mpi_call& call, bool exchange) {
    if (!exchange || size_ == 1) return;
    post_call(blocking_, call, calls_);
    wait(blocking_, call);
    expect_same_call(calls_);
  }

  // What a rank called, as far as it matters for that collective.
  static std::string in_words(const mpi_call& call) {
    std::string text = "call " + std::to_string(call.sequence) + ", " + collective_name(call.kind);
    if (call.kind == number(collective::barrier)) return text;
    text += std::string(" of ") + element_name(call.element);
    if (call.kind != number(collective::all_to_all)) text += " x " + std::to_string(call.count);
    if (call.kind == number(collective::broadcast))
      text += " from rank " + std::to_string(call.root);
    if (call.kind == number(collective::all_reduce_sum) && call.root != 0)
      text += " (part " + std::to_string(call.root) + ")";
    return text;
  }

  // Not an exception: ranks that hang or died cannot be told, and this one must not go on.
  [[noreturn]] void time_out(mpi_transfer& transfer, const mpi_call& call) const {
    std::fprintf(stderr,
                 "smelt: rank %lld of %lld: call %lld, %s, did not end within %g s; no answer "
                 "from %s; the job ends, go on from the last checkpoint\n",
                 static_cast<long long>(rank_), static_cast<long long>(size_),
                 static_cast<long long>(call.sequence), collective_name(call.kind),
                 options_.timeout_seconds, transfer.missing().c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();  // MPI may return before the job has ended
  }

  mpi_options options_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::int64_t rank_ = 0;
  std::int64_t size_ = 1;
  // When the engine was made; more of them later mean that one is on its way through.
  int exceptions_ = std::uncaught_exceptions();
  std::int64_t sequence_ = 0;  // calls so far, the same on every rank
  sent_bytes sent_{};
  mpi_transfer blocking_;
  std::vector<mpi_progress*> under_way_;  // in no order
  // Scratch of the checks, kept so that a step allocates nothing.
  std::vector<mpi_call> calls_;
  std::vector<std::int64_t> pair_counts_, pair_verdicts_;
};

}  // namespace smelt::detail
