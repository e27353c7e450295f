// SPDX-License-Identifier: Apache-2.0
//
// The execution policy is the first argument of every op and selects the overload.
//
//   host<>{2}        two threads, matrix products in float32
//   host<bf16>{2}    products in bf16 with float32 sums; everything else stays float32
//   host<double>{1}  the reference that gradients are proved with
//
// The number of threads never changes a bit of a result: work is cut into blocks of fixed size, and
// a block does not know which thread runs it.
#pragma once

#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/exec/bf16.hpp"
#include "smelt/exec/flop_counter.hpp"
#include "smelt/exec/parallel.hpp"

namespace smelt {
inline namespace host_backend {

template <class Compute = float>
class host {
 public:
  using compute = Compute;
  using real = real_of<Compute>;

  /// threads = 0 takes as many as the machine offers.
  explicit host(int threads = 0) : threads_(threads == 0 ? available_threads() : threads) {
    if (threads < 0)
      throw error("host{threads}: expected 0 (all) or more threads, found " +
                  std::to_string(threads));
  }

  int threads() const { return threads_; }

  /// Counts into `counter` until told otherwise; nullptr stops counting. Not shared by threads:
  /// only the calling thread counts.
  void count_into(flop_counter* counter) { counter_ = counter; }
  void count_product(std::int64_t m, std::int64_t n, std::int64_t k) const {
    if (counter_ != nullptr) counter_->products += 2 * m * n * k;
  }
  void count_attention(std::int64_t flops, std::int64_t recomputed) const {
    if (counter_ == nullptr) return;
    counter_->attention += flops;
    counter_->recomputed += recomputed;
  }
  /// Moves a product that was counted to those executed again to save memory.
  void recount_product(std::int64_t m, std::int64_t n, std::int64_t k) const {
    if (counter_ == nullptr) return;
    counter_->products -= 2 * m * n * k;
    counter_->recomputed += 2 * m * n * k;
  }

 private:
  int threads_;
  flop_counter* counter_ = nullptr;
};

host()->host<float>;
host(int)->host<float>;

/// Runs body(begin, end) over [0, count) in blocks of `block`, on the policy's threads.
template <class Compute, class Body>
void for_each_block(const host<Compute>& run, std::int64_t count, std::int64_t block, Body&& body) {
  for_each_block(run.threads(), count, block, body);
}

}  // namespace host_backend
}  // namespace smelt
