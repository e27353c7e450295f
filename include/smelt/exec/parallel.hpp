// SPDX-License-Identifier: Apache-2.0
//
// Loops on the host's threads (OpenMP where the compiler offers it, otherwise one thread).
//
// Blocks have a fixed size and are handed out as threads become free: what a block computes depends
// on its bounds alone, so results do not depend on the number of threads. Sums over blocks are kept
// per block and added up in order (see sum_over_blocks).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace smelt {
inline namespace host_backend {

/// Threads that this process may use.
inline int available_threads() {
#if defined(_OPENMP)
  return std::max(1, omp_get_max_threads());
#else
  return 1;
#endif
}

/// While it lives, a library called on this thread runs on this thread alone: OpenMP libraries look
/// at the calling thread's setting, and outside a team they would start their own.
class one_thread_scope {
 public:
#if defined(_OPENMP)
  one_thread_scope() : kept_(omp_get_max_threads()) {
    if (kept_ != 1) omp_set_num_threads(1);
  }
  ~one_thread_scope() {
    if (kept_ != 1) omp_set_num_threads(kept_);
  }

 private:
  int kept_;
#else
  one_thread_scope() {}  // not defaulted: an unused variable of this type is on purpose
#endif
 public:
  one_thread_scope(const one_thread_scope&) = delete;
  one_thread_scope& operator=(const one_thread_scope&) = delete;
};

/// Which of a loop's `threads` runs the calling block: 0 to threads - 1. A loop that runs serially
/// inside somebody else's team is worker 0 of itself.
inline int worker_index(int threads) {
#if defined(_OPENMP)
  const int index = omp_get_thread_num();
  return index < threads ? index : 0;
#else
  return threads * 0;
#endif
}

/// Runs body(begin, end) for the blocks of [0, count). The body must not throw.
template <class Body>
void for_each_block(int threads, std::int64_t count, std::int64_t block, Body&& body) {
  const std::int64_t blocks = (count + block - 1) / block;
  // A single block, or a single thread, needs no team: waking one costs more than small work.
  if (threads <= 1 || blocks <= 1) {
    for (std::int64_t i = 0; i < blocks; ++i) body(i * block, std::min(count, (i + 1) * block));
    return;
  }
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
#endif
  for (std::int64_t i = 0; i < blocks; ++i) body(i * block, std::min(count, (i + 1) * block));
}

/// Sum of body(begin, end) over at most 64 blocks of [0, count), always added in the same order.
template <class Real, class Body>
Real sum_over_blocks(int threads, std::int64_t count, Body&& body) {
  constexpr std::int64_t most_blocks = 64;
  std::array<Real, most_blocks> partial{};
  const std::int64_t block = std::max<std::int64_t>(1, (count + most_blocks - 1) / most_blocks);
  for_each_block(threads, count, block, [&](std::int64_t begin, std::int64_t end) {
    partial[static_cast<std::size_t>(begin / block)] = body(begin, end);
  });
  Real total{};
  for (const Real& part : partial) total += part;
  return total;
}

}  // namespace host_backend
}  // namespace smelt
