// SPDX-License-Identifier: Apache-2.0
//
// The second unit of kernels.
#include "both.cuh"

namespace smelt::test {

findings in_other_unit() {
  return both();
}

}  // namespace smelt::test
