// SPDX-License-Identifier: Apache-2.0
// expect: leave shared<> out for none
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::moe<8, 2, 64>;
#else
template struct smelt::moe<8, 2, 64, shared<0>>;
#endif
