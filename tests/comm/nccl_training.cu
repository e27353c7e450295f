// SPDX-License-Identifier: Apache-2.0
//
// The trainer on several ranks with NCCL, a device each, against one rank on the host: gradients of
// a step, and losses of 50; the same suite that training.cpp runs over MPI. Steps that exchange no
// expert rows are recorded as graphs, collectives and all.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "nccl_suite.hpp"
#include "smelt/cuda.hpp"
#include "smelt/host.hpp"
#include "smelt/nccl.hpp"
// Behind the engine, whose types it uses.
#include "training_suite.hpp"

namespace smelt::test {

TEST_CASE("NCCL: gradients of a step over ranks are those of one rank") {
  nccl& ranks = nccl_world();
  if (ranks.size() != 2) return;  // two show it; three would take as long again
  for (const parallel_setting& how : settings_for<two_sizes>(ranks.size()))
    check_gradient_over_ranks<two_sizes>(cuda<>(), ranks, how, 2e-5);
}

TEST_CASE("NCCL: 50 steps over ranks are those of one rank") {
  nccl& ranks = nccl_world();
  if (ranks.size() != 2) return;  // two show it; three would take as long again
  trainer<two_sizes, host<>> whole(host<>(1), options_over_ranks(), 7);
  const auto expected = train_steps(whole, 50);
  check_training_over_ranks<two_sizes>(cuda<>(), ranks, 50, expected);
}

}  // namespace smelt::test
