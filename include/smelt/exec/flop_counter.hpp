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

}  // namespace smelt
