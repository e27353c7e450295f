// SPDX-License-Identifier: Apache-2.0
//
// The other of the two translation units that include every header.
#include "every_header.hpp"

int in_the_other_unit();
int in_the_other_unit() {
  return 0;
}
