// SPDX-License-Identifier: Apache-2.0
// expect: the fourth argument must be shared<Width>
#include "smelt/smelt.hpp"

using namespace smelt;

#ifdef REPAIRED
using experts = moe<8, 2, 64, shared<32>>;
#else
using experts = moe<8, 2, 64, int>;
#endif
static_assert(experts::experts == 8);
