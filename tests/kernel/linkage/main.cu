// SPDX-License-Identifier: Apache-2.0
//
// One program with two units of kernels, one of host code, and two shared objects that each hold
// both backends: everybody finds the same, and nobody calls another's flavour.
#include <doctest/doctest.h>

#include "both.cuh"

namespace smelt::test {

findings in_main_unit() {
  return both();
}

TEST_CASE("host and CUDA flavours live in one program, in several units and shared objects") {
  const findings mine = in_main_unit();
  REQUIRE(mine.cuda_norm.size() == static_cast<std::size_t>(rows * width));
  CHECK(relative_error(mine.cuda_norm, mine.host_norm) < 1e-6);
  CHECK(mine.cuda_slots == mine.host_slots);
  for (const findings& theirs :
       {in_other_unit(), *smelt_test_findings_one(), *smelt_test_findings_two()}) {
    CHECK(theirs.cuda_norm == mine.cuda_norm);
    CHECK(relative_error(theirs.host_norm, mine.host_norm) < 1e-6);
    CHECK(theirs.cuda_slots == mine.cuda_slots);
    CHECK(theirs.host_slots == mine.host_slots);
  }
  const findings host_alone = in_host_unit();
  CHECK(relative_error(host_alone.host_norm, mine.host_norm) < 1e-6);
  CHECK(host_alone.host_slots == mine.host_slots);
}

}  // namespace smelt::test
