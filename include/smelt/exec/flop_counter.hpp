// SPDX-License-Identifier: Apache-2.0
//
// Counts the FLOPs that a run executes, so that a test can demand that they equal the compile-time
// accounting exactly. Work done twice on purpose (recomputed scores in attention's backward) is
// kept apart: it is executed, but it is not a FLOP of the model.
#pragma once

#include <cstdint>

namespace smelt {

struct flop_counter {
  std::int64_t products = 0;    // 2 m n k of every matrix product
  std::int64_t attention = 0;   // 4 q per pair forward, 8 q backward
  std::int64_t recomputed = 0;  // executed again to save memory

  std::int64_t model_flops() const { return products + attention; }
  void reset() { *this = flop_counter{}; }
};

/// What execution policies inherit: where their ops count. Only the calling thread counts.
class flop_counting {
 public:
  /// Counts into `counter` until told otherwise; nullptr stops counting.
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
  /// Runs body(); whatever it counts is work done again.
  template <class Body>
  void count_as_recomputed(Body&& body) const {
    const flop_counter before = counter_ == nullptr ? flop_counter{} : *counter_;
    body();
    if (counter_ == nullptr) return;
    const std::int64_t executed =
        counter_->model_flops() - before.model_flops() + counter_->recomputed;
    *counter_ = before;
    counter_->recomputed = executed;
  }

 private:
  flop_counter* counter_ = nullptr;
};

}  // namespace smelt
