// SPDX-License-Identifier: Apache-2.0
// expect: QueryHeads must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::gqa<4, 4, 64>;
#else
template struct smelt::gqa<0, 4, 64>;
#endif
