// SPDX-License-Identifier: Apache-2.0
// expect: Visits must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<looped<4, 1>>>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<looped<4, 0>>>;
#endif
