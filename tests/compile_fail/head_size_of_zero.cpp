// SPDX-License-Identifier: Apache-2.0
// expect: HeadDim must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::gqa<4, 1, 64>;
#else
template struct smelt::gqa<4, 1, 0>;
#endif
