// SPDX-License-Identifier: Apache-2.0
//
// doctest's main on several ranks with NCCL: a case that fails on one rank fails the job. With
// SMELT_TEST_FAULT in the environment it is the program in which a rank goes wrong instead, since
// fault.cmake has its one argument for the program behind the wrapper.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "nccl_suite.hpp"

int main(int argc, char** argv) {
  if (const char* what = std::getenv("SMELT_TEST_FAULT")) return smelt::test::nccl_fault(what);
  return smelt::run_ranks(argc, argv, [&](smelt::mpi& launcher) {
    return smelt::test::with_nccl(launcher, [&] {
      doctest::Context context(argc, argv);
      return context.run();
    });
  });
}
