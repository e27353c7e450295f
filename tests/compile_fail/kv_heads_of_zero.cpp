// SPDX-License-Identifier: Apache-2.0
// expect: KvHeads must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::gqa<4, 1, 64>;
#else
template struct smelt::gqa<4, 0, 64>;
#endif
