// SPDX-License-Identifier: Apache-2.0
// expect: plain<Layers>: a span needs at least 1 layer
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>,
                                   stack<repeated<2, plain<4>>>>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>,
                                   stack<repeated<2, plain<0>>>>;
#endif
