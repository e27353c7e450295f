// SPDX-License-Identifier: Apache-2.0
// expect: the fourth argument must be
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, plain<4>>;
#endif
