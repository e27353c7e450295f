// SPDX-License-Identifier: Apache-2.0
// expect: a span's own feed-forward must be moe
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>,
                                   stack<plain<4, dense<64>>>>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>,
                                   stack<plain<4, hidden<64>>>>;
#endif
