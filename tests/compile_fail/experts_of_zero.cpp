// SPDX-License-Identifier: Apache-2.0
// expect: Experts must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::moe<8, 2, 64>;
#else
template struct smelt::moe<0, 2, 64>;
#endif
