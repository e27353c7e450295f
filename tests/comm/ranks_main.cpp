// SPDX-License-Identifier: Apache-2.0
//
// doctest's main on several ranks: a case that fails on one rank fails the job.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "world.hpp"

namespace {
smelt::mpi* the_world = nullptr;
}

smelt::mpi& smelt::test::world() {
  return *the_world;
}

int main(int argc, char** argv) {
  return smelt::run_ranks(argc, argv, [&](smelt::mpi& ranks) {
    the_world = &ranks;
    doctest::Context context(argc, argv);
    return context.run();
  });
}
