// SPDX-License-Identifier: Apache-2.0
//
// Independent jobs over a few threads. Job i writes only to slot i of its caller's results, so the
// bits of a result never depend on how many threads there were or which of them ran it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace smelt::law {

/// Told now and then how many of `total` jobs are done, from one thread at a time. May throw: the
/// remaining jobs are then skipped and the exception reaches the caller.
using progress_function = std::function<void(std::int64_t done, std::int64_t total)>;

/// Runs `job(i)` for i in [0, count) on `threads` threads (0: one per core of the machine).
/// If jobs throw, the exception of the lowest i that ran and threw is rethrown after all ended.
template <class Job>
void for_each_index(std::int64_t count, std::int64_t threads, const Job& job,
                    const progress_function& progress = {}) {
  if (threads <= 0) threads = std::max(1U, std::thread::hardware_concurrency());
  threads = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, count));

  std::atomic<std::int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex guard;  // over the four below
  std::int64_t done = 0;
  std::int64_t failed_index = count;
  std::exception_ptr failure;

  const auto work = [&] {
    for (std::int64_t i = next++; i < count && !stop; i = next++) {
      std::exception_ptr caught;
      try {
        job(i);
      } catch (...) {
        caught = std::current_exception();
      }
      const std::lock_guard lock(guard);
      ++done;
      if (!caught && progress && !stop) {
        try {
          progress(done, count);
        } catch (...) {
          caught = std::current_exception();
        }
      }
      if (caught) {
        stop = true;
        if (i < failed_index) {
          failed_index = i;
          failure = caught;
        }
      }
    }
  };

  std::vector<std::thread> others;
  for (std::int64_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace smelt::law
