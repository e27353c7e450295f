// SPDX-License-Identifier: Apache-2.0
//
// nccl_watch: ends the job where a collective hangs or NCCL finds a rank lost, and says which.
//
//   device   a kernel of one thread before each collective, begun += 1, and one behind it,
//            ended += 1, in pinned memory of the host
//   host     a thread that looks at both: while they differ, a collective is under way; where that
//            does not change within the timeout, it prints one line and ends the process. It also
//            asks NCCL for errors that arose on the way, and watches calls that block the host.
//
// Counters rather than events: those of a recorded graph count in every replay, nothing is asked of
// a stream that is being recorded, and time that a collective spends behind other work of its
// stream is not held against it. What they cost: two launches of one thread per collective.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/exec/cuda/buffer.cuh"

namespace smelt::detail {

/// Throws where a CUDA call failed. Its name becomes a string only then: a step allocates nothing.
inline void expect_cuda(cudaError_t found, const char* call) {
  if (found != cudaSuccess) cuda_detail::check(found, call);
}

/// A collective, as the device tells it to the host.
struct nccl_call {
  std::int64_t kind = 0;
  std::int64_t element = 0;
  std::int64_t count = 0;
  std::int64_t ranks = 0;
};

/// Written by the device alone, read by the host at any time.
struct nccl_progress {
  std::int64_t begun = 0;
  std::int64_t ended = 0;
  nccl_call call;  // begun last
};

// Templates, so that two translation units may have them. Only collectives of one engine's stream
// count here, one after the other: plain additions are enough.
template <class Progress>
__global__ void nccl_begin_kernel(volatile Progress* progress, nccl_call call) {
  progress->call.kind = call.kind;
  progress->call.element = call.element;
  progress->call.count = call.count;
  progress->call.ranks = call.ranks;
  progress->begun = progress->begun + 1;
}
template <class Progress>
__global__ void nccl_end_kernel(volatile Progress* progress) {
  progress->ended = progress->ended + 1;
}

class nccl_watch {
 public:
  /// For rank `rank` of `ranks`; its own thread runs until it is destroyed.
  nccl_watch(std::int64_t rank, std::int64_t ranks, double timeout_seconds)
      : rank_(rank),
        ranks_(ranks),
        timeout_seconds_(timeout_seconds),
        memory_(sizeof(nccl_progress)),
        progress_(reinterpret_cast<nccl_progress*>(memory_.data())),
        thread_([this] { look(); }) {}
  nccl_watch(const nccl_watch&) = delete;
  nccl_watch& operator=(const nccl_watch&) = delete;
  ~nccl_watch() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  /// A collective on the stream, between the two.
  void begin(cudaStream_t stream, const nccl_call& call) {
    nccl_begin_kernel<<<1, 1, 0, stream>>>(progress_, call);
    expect_cuda(cudaGetLastError(), "begin of a collective");
  }
  void end(cudaStream_t stream) {
    nccl_end_kernel<<<1, 1, 0, stream>>>(progress_);
    expect_cuda(cudaGetLastError(), "end of a collective");
  }

  /// A call that keeps the host until other ranks make it too; `name` lives as long as the program.
  template <class Call>
  auto blocking(const char* name, Call&& call) {
    struct guard {
      std::atomic<const char*>& name;
      ~guard() { name = nullptr; }
    };
    host_call_ = name;
    const guard leave{host_call_};
    return call();
  }

  /// Communicators that are asked for errors, from here to there.
  void add(ncclComm_t comm) {
    const std::lock_guard<std::mutex> guard(mutex_);
    comms_.push_back(comm);
  }
  void remove(ncclComm_t comm) {
    const std::lock_guard<std::mutex> guard(mutex_);
    comms_.erase(std::remove(comms_.begin(), comms_.end(), comm), comms_.end());
  }

 private:
  using clock = std::chrono::steady_clock;

  // What is under way; equal ones mean that nothing has changed.
  struct state {
    std::int64_t begun = 0;
    std::int64_t ended = 0;
    const char* host_call = nullptr;

    bool idle() const { return begun == ended && host_call == nullptr; }
    bool operator==(const state&) const = default;
  };
  state now() const {
    // volatile: the device changes these behind the compiler's back.
    const volatile nccl_progress* shared = progress_;
    return {shared->begun, shared->ended, host_call_};
  }

  void look() {
    // Ranks that wait in vain do so together: the lowest speaks first and ends the others.
    const double limit =
        timeout_seconds_ + 0.2 * static_cast<double>(std::min<std::int64_t>(rank_, 10));
    state before;
    clock::time_point since = clock::now();
    std::unique_lock<std::mutex> guard(mutex_);
    while (!wake_.wait_for(guard, std::chrono::milliseconds(100), [this] { return done_; })) {
      for (ncclComm_t comm : comms_) {
        ncclResult_t found = ncclSuccess;
        if (ncclCommGetAsyncError(comm, &found) == ncclSuccess && found != ncclSuccess &&
            found != ncclInProgress)
          lost(comm, found);
      }
      const state current = now();
      if (current.idle() || !(current == before)) since = clock::now();
      before = current;
      if (std::chrono::duration<double>(clock::now() - since).count() > limit) time_out(current);
    }
  }

  // Not exceptions: the thread of the program hangs in the collective and cannot catch one.
  [[noreturn]] void time_out(const state& found) const {
    std::string what = found.host_call == nullptr ? "" : found.host_call;
    if (found.begun != found.ended) {
      const nccl_call call = progress_->call;
      what = collective_name(call.kind);
      if (call.kind != static_cast<std::int64_t>(collective::barrier))
        what +=
            std::string(" of ") + element_name(call.element) + " x " + std::to_string(call.count);
      what += " over " + std::to_string(call.ranks) + " ranks";
    }
    std::fprintf(stderr,
                 "smelt: rank %lld of %lld: %s did not end within %g s, as a rank is lost or calls "
                 "something else; the job ends, go on from the last checkpoint\n",
                 static_cast<long long>(rank_), static_cast<long long>(ranks_), what.c_str(),
                 timeout_seconds_);
    end_process();
  }
  [[noreturn]] void lost(ncclComm_t comm, ncclResult_t found) const {
    std::fprintf(stderr,
                 "smelt: rank %lld of %lld: NCCL: expected no error on the way, found %d (%s; %s); "
                 "the job ends, go on from the last checkpoint\n",
                 static_cast<long long>(rank_), static_cast<long long>(ranks_),
                 static_cast<int>(found), ncclGetErrorString(found), ncclGetLastError(comm));
    end_process();
  }
  // Without destructors, which would wait for the device. Launchers end the others.
  [[noreturn]] static void end_process() {
    std::fflush(stderr);
    std::_Exit(1);
  }

  std::int64_t rank_;
  std::int64_t ranks_;
  double timeout_seconds_;
  pinned_buffer memory_;
  nccl_progress* progress_;
  std::atomic<const char*> host_call_{nullptr};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::vector<ncclComm_t> comms_;
  std::thread thread_;  // last: it sees all of the others made
};

}  // namespace smelt::detail
