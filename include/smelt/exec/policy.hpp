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
#include "smelt/exec/recomputation.hpp"

namespace smelt {
inline namespace host_backend {

template <class Compute = float>
class host : public flop_counting {
 public:
  using compute = Compute;
  using real = real_of<Compute>;
  using statistic = double;  // sums over a batch: loss, norms, balance

  /// threads = 0 takes as many as the machine offers.
  explicit host(int threads = 0) : threads_(threads == 0 ? available_threads() : threads) {
    if (threads < 0)
      throw error("host{threads}: expected 0 (all) or more threads, found " +
                  std::to_string(threads));
  }

  int threads() const { return threads_; }

  recomputation recompute() const { return recompute_; }
  void set_recompute(recomputation what) { recompute_ = what; }

 private:
  int threads_;
  recomputation recompute_ = recomputation::none;
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
