// SPDX-License-Identifier: Apache-2.0
//
// nccl_channel: a communicator, and the one stream on which all NCCL calls of a process keep order.
//
// NCCL wants the calls of a communicator in one order, and of several communicators of a device in
// the same order on every rank. So engines made by split share the stream of the first one, and
// each call goes there whatever the policy:
//
//   policy's stream  ... --ready-->                       --done--> ...
//   engine's stream            wait, begin, NCCL, end ---/
//
// A sum under way leaves the last arrow to its finish(). In a recorded graph the arrows are edges.
// What the messages mean is the business of comm/nccl.cuh; hangs are that of comm/nccl_watch.cuh.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "smelt/comm/collectives.hpp"
#include "smelt/comm/nccl_launch.hpp"
#include "smelt/comm/nccl_watch.cuh"
#include "smelt/exec/cuda/buffer.cuh"

namespace smelt {

/// How the NCCL engine behaves; the same on every rank, but for the device.
struct nccl_options {
  /// A collective that does not end within this time ends the process.
  double timeout_seconds = comm_timeout_seconds();
  /// The CUDA device of this process; negative: by its rank on the machine.
  int device = -1;
  /// Device memory through which data of the host go, in pieces.
  std::int64_t staging_bytes = 1 << 20;
};

namespace detail {

/// NCCL's name for a type; bytes are numbers without a sign to it.
template <sent_element T>
inline constexpr ncclDataType_t nccl_type = std::same_as<T, float>          ? ncclFloat32
                                            : std::same_as<T, double>       ? ncclFloat64
                                            : std::same_as<T, std::int64_t> ? ncclInt64
                                            : std::same_as<T, bf16>         ? ncclBfloat16
                                            : std::same_as<T, std::int32_t> ? ncclInt32
                                                                            : ncclUint8;

/// Throws where an NCCL call failed; `comm` may be null.
inline void expect_nccl(ncclResult_t found, const char* call, std::int64_t rank, ncclComm_t comm) {
  if (found == ncclSuccess) return;
  std::string last = ncclGetLastError(comm);
  std::replace(last.begin(), last.end(), '\n', ' ');
  throw error(std::string("NCCL: ") + call + ": rank " + std::to_string(rank) +
              ": expected ncclSuccess, found " + std::to_string(static_cast<int>(found)) + " (" +
              ncclGetErrorString(found) + "; " + last + "); NCCL_DEBUG=WARN says more");
}

/// A point of a stream that another stream waits for.
class cuda_event {
 public:
  cuda_event() = default;
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  ~cuda_event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  /// Made at first use, and kept.
  void record(cudaStream_t stream) {
    if (event_ == nullptr)
      expect_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    expect_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void hold(cudaStream_t stream) const {
    expect_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  /// Whether the stream has come past it. Not to be asked of a recording.
  bool passed() const {
    const cudaError_t found = cudaEventQuery(event_);
    if (found == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // else the next launch would be blamed
      return false;
    }
    expect_cuda(found, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

inline bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  expect_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

/// What the engines of a process share.
class nccl_line {
 public:
  nccl_line(const launched_process& process, int device, const nccl_options& options)
      : device_(device),
        stream_(high_priority_stream()),
        watch_(process.rank, process.ranks, options.timeout_seconds),
        // An all_to_all has two slots for each rank, of an element at least.
        staging_(std::max({options.staging_bytes, std::int64_t{1} << 12, process.ranks * 32}),
                 stream_.get(), "data of the host on their way through NCCL") {}

  nccl_line(const nccl_line&) = delete;
  nccl_line& operator=(const nccl_line&) = delete;
  // The device writes into memory of ours until its last work is done. No engine is left by now, so
  // nothing waits for another rank.
  ~nccl_line() { static_cast<void>(cudaStreamSynchronize(stream())); }

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_.get(); }
  nccl_watch& watch() { return watch_; }
  const cuda_buffer& staging() const { return staging_; }

  /// What is asked of the engine's stream from now on waits for what was asked of `other`.
  void enter_from(cudaStream_t other) {
    ready_.record(other);
    ready_.hold(stream());
  }
  /// And the other way round.
  void leave_to(cudaStream_t other) {
    done_.record(stream());
    done_.hold(other);
  }

 private:
  struct destroy_stream {
    void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
  };
  using owned_stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, destroy_stream>;

  // A collective that waits for room on the device keeps all other ranks waiting too.
  static owned_stream high_priority_stream() {
    int least = 0, greatest = 0;
    expect_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                "cudaDeviceGetStreamPriorityRange");
    cudaStream_t made = nullptr;
    expect_cuda(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest),
                "cudaStreamCreateWithPriority");
    return owned_stream(made);
  }

  int device_;
  owned_stream stream_;
  nccl_watch watch_;
  cuda_buffer staging_;
  cuda_event ready_, done_;
};

class nccl_channel {
 public:
  /// All ranks of the job, with the id that NCCL gave rank 0.
  nccl_channel(const launched_process& process, int device, const ncclUniqueId& id,
               const nccl_options& options)
      : line_(std::make_shared<nccl_line>(process, device, options)),
        rank_(process.rank),
        size_(process.ranks) {
    expect(line_->watch().blocking("ncclCommInitRank",
                                   [&] {
                                     return ncclCommInitRank(&comm_, static_cast<int>(size_), id,
                                                             static_cast<int>(rank_));
                                   }),
           "ncclCommInitRank");
    line_->watch().add(comm_);
  }
  /// The ranks of `whole` that give the same color, in the order of key.
  nccl_channel(nccl_channel& whole, std::int64_t color, std::int64_t key)
      : line_(whole.line_), rank_(whole.rank_), size_(whole.size_) {
    constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
    if (color < 0 || color > most || key < -most || key > most)
      throw error("nccl: split: expected a color from 0 to 2^31 - 1 and a key of 32 bits, found " +
                  std::to_string(color) + " and " + std::to_string(key));
    whole.quiet();
    expect(line_->watch().blocking("ncclCommSplit",
                                   [&] {
                                     return ncclCommSplit(whole.comm_, static_cast<int>(color),
                                                          static_cast<int>(key), &comm_, nullptr);
                                   }),
           "ncclCommSplit");
    int rank = 0, size = 0;
    expect(ncclCommUserRank(comm_, &rank), "ncclCommUserRank");
    expect(ncclCommCount(comm_, &size), "ncclCommCount");
    rank_ = rank;
    size_ = size;
    line_->watch().add(comm_);
  }
  nccl_channel(const nccl_channel&) = delete;
  nccl_channel& operator=(const nccl_channel&) = delete;
  // Destroying waits for the other ranks. With an exception on its way they may be elsewhere.
  ~nccl_channel() {
    if (comm_ == nullptr) return;
    line_->watch().remove(comm_);
    if (std::uncaught_exceptions() > exceptions_) {
      static_cast<void>(
          line_->watch().blocking("ncclCommAbort", [&] { return ncclCommAbort(comm_); }));
      return;
    }
    static_cast<void>(cudaStreamSynchronize(line_->stream()));
    static_cast<void>(line_->watch().blocking(
        "ncclCommDestroy (graphs that were recorded with an engine go before it)",
        [&] { return ncclCommDestroy(comm_); }));
  }

  std::int64_t rank() const { return rank_; }
  std::int64_t size() const { return size_; }
  const sent_bytes& sent() const { return sent_; }
  ncclComm_t comm() const { return comm_; }
  nccl_line& line() const { return *line_; }

  void expect(ncclResult_t found, const char* call) const {
    expect_nccl(found, call, rank_, comm_);
  }
  void expect_device(int found) const {
    if (found != line_->device())
      throw error("nccl: rank " + std::to_string(rank_) + ": expected a policy on device " +
                  std::to_string(line_->device()) + ", found one on device " +
                  std::to_string(found) + "; make the engine first, it chooses the device");
  }
  /// What this rank hands to the network, by the rule of comm/collectives.hpp.
  void count_sent(collective kind, std::int64_t bytes) {
    (kind == collective::barrier ? sent_.control : sent_.by_kind[static_cast<std::size_t>(kind)]) +=
        bytes;
  }

  /// The NCCL calls of calls() as one: they belong together and wait for one another in no order.
  template <class Calls>
  void grouped(Calls&& calls) {
    expect(ncclGroupStart(), "ncclGroupStart");
    try {
      calls();
    } catch (...) {
      static_cast<void>(ncclGroupEnd());
      throw;
    }
    expect(ncclGroupEnd(), "ncclGroupEnd");
  }
  /// body(stream) is a collective on the engine's stream, watched from begin to end.
  template <sent_element T, class Body>
  void watched(collective kind, std::int64_t count, Body&& body) {
    nccl_watch& watch = line_->watch();
    watch.begin(line_->stream(),
                {static_cast<std::int64_t>(kind), element_number<T>, count, size_});
    try {
      body(line_->stream());
    } catch (...) {
      // It is over, if not well: who catches this must not be ended for a hang.
      watch.end(line_->stream());
      throw;
    }
    watch.end(line_->stream());
  }
  /// Waits for all work of the device: a graph with collectives of this engine may be at work, on
  /// streams that the engine does not know.
  void quiet() { expect_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

 private:
  std::shared_ptr<nccl_line> line_;
  ncclComm_t comm_ = nullptr;
  std::int64_t rank_;
  std::int64_t size_;
  // When the engine was made; more of them later mean that one is on its way through.
  int exceptions_ = std::uncaught_exceptions();
  sent_bytes sent_{};
};

}  // namespace detail
}  // namespace smelt
