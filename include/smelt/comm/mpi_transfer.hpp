// SPDX-License-Identifier: Apache-2.0
//
// What the MPI engine is made of: nonblocking messages between two ranks, and the checked call.
//
// Collectives are built from these rather than from MPI's own, since a receive that stays open
// names the rank that did not answer, offsets are not bound to 32 bits, and the order of a sum is
// ours. Source: MPI 3.1, sections 3.7 (nonblocking) and 3.5 (messages do not overtake).
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smelt/comm/timeout.hpp"
#include "smelt/error.hpp"

namespace smelt {

/// How the MPI engine behaves; the same on every rank.
struct mpi_options {
  /// A collective that does not end within this time ends the job.
  double timeout_seconds = comm_timeout_seconds();
  /// Every call is compared between all ranks before its data move: a message of 40 bytes per pair
  /// of ranks, for which the call waits. Off, a mismatch ends in MPI's own error, a timeout or
  /// wrong sums.
  bool check_calls = true;
};

namespace detail {

/// Throws where an MPI call failed; `call` is its name.
inline void expect_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  text.resize(static_cast<std::size_t>(length));
  throw error(std::string(call) + ": expected MPI_SUCCESS, found " + std::to_string(code) + " (" +
              text + ")");
}

/// Messages under way. Memory of a message must stay until done() has returned true. Keeps its own
/// memory for the next round, so a step that has run once allocates nothing.
class mpi_transfer {
 public:
  mpi_transfer() = default;
  mpi_transfer(const mpi_transfer&) = delete;
  mpi_transfer& operator=(const mpi_transfer&) = delete;
  // Only an error leaves messages open; their memory is about to go away.
  ~mpi_transfer() {
    int finalised = 0;
    if (requests_.empty() || MPI_Finalized(&finalised) != MPI_SUCCESS || finalised != 0) return;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (!ends_[i].sending) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
  }

  /// Posts a message of `bytes` to a rank, and the receipt of one.
  void send(MPI_Comm comm, const void* data, std::int64_t bytes, std::int64_t peer, int tag) {
    in_messages(bytes, peer, true, [&](std::int64_t offset, int size, MPI_Request* request) {
      return MPI_Isend(static_cast<const std::byte*>(data) + offset, size, MPI_BYTE,
                       static_cast<int>(peer), tag, comm, request);
    });
  }
  void receive(MPI_Comm comm, void* data, std::int64_t bytes, std::int64_t peer, int tag) {
    in_messages(bytes, peer, false, [&](std::int64_t offset, int size, MPI_Request* request) {
      return MPI_Irecv(static_cast<std::byte*>(data) + offset, size, MPI_BYTE,
                       static_cast<int>(peer), tag, comm, request);
    });
  }

  /// Lets MPI make progress; true when everything has arrived and left.
  bool done() {
    if (requests_.empty()) return true;
    int finished = 0;
    expect_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &finished,
                           MPI_STATUSES_IGNORE),
               "MPI_Testall");
    if (finished == 0) return false;
    requests_.clear();
    ends_.clear();
    return true;
  }

  /// The ranks whose messages have not come, "rank 1, rank 3"; where all came, those who did not
  /// take ours. For the message of a job that ends.
  std::string missing() {
    const std::string silent = open(false);
    return silent.empty() ? open(true) : silent;
  }

 private:
  // Of a request: with whom, and in which direction.
  struct message_end {
    std::int64_t peer;
    bool sending;
  };

  // MPI counts in int. Nothing is sent where there is nothing: both ends know the length.
  template <class Post>
  void in_messages(std::int64_t bytes, std::int64_t peer, bool sending, Post&& post) {
    constexpr std::int64_t largest = std::int64_t{1} << 30;
    for (std::int64_t offset = 0; offset < bytes; offset += largest) {
      MPI_Request request = MPI_REQUEST_NULL;
      expect_mpi(post(offset, static_cast<int>(std::min(largest, bytes - offset)), &request),
                 sending ? "MPI_Isend" : "MPI_Irecv");
      requests_.push_back(request);
      ends_.push_back({peer, sending});
    }
  }

  // Names each rank once; its messages were posted one behind the other.
  std::string open(bool sending) {
    std::string names;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int finished = 0;
      if (ends_[i].sending != sending ||
          MPI_Test(&requests_[i], &finished, MPI_STATUS_IGNORE) != MPI_SUCCESS || finished != 0)
        continue;
      const std::string name = "rank " + std::to_string(ends_[i].peer);
      if (!names.ends_with(name)) names += (names.empty() ? "" : ", ") + name;
    }
    return names;
  }

  // Two arrays, since MPI wants its requests in one.
  std::vector<MPI_Request> requests_;
  std::vector<message_end> ends_;
};

/// What a rank says of a call before its data move: compared with what rank 0 says.
struct mpi_call {
  std::int64_t sequence = 0;  // calls on this engine before this one
  std::int64_t kind = 0;
  std::int64_t element = 0;
  std::int64_t count = 0;  // in all_to_all that of the pair, compared apart
  std::int64_t root = 0;   // of a broadcast; of a sum under way its part

  bool operator==(const mpi_call&) const = default;
};

}  // namespace detail
}  // namespace smelt
