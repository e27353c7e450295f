// SPDX-License-Identifier: Apache-2.0
//
// A shared object with both backends inside; compiled twice, under two names.
#include "both.cuh"

extern "C" const smelt::test::findings* SMELT_TEST_OBJECT() {
  static const smelt::test::findings found = smelt::test::both();
  return &found;
}
