// SPDX-License-Identifier: Apache-2.0
// expect: repeated<Times, Spans...>: Times must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::repeated<1, plain<1>>;
#else
template struct smelt::repeated<0, plain<1>>;
#endif
