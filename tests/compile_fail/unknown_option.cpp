// SPDX-License-Identifier: Apache-2.0
// expect: an option must be one of qk_norm::
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>,
                                   qk_norm::per_head>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>,
                                   hidden<64>>;
#endif
