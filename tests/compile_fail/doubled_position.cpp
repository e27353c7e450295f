// SPDX-License-Identifier: Apache-2.0
// expect: the same kind of option is named twice; keep one
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>,
                                   position::none>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>,
                                   position::rope<10000>, position::none>;
#endif
