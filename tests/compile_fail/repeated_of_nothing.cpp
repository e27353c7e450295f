// SPDX-License-Identifier: Apache-2.0
// expect: repeated<Times, Spans...>: name at least one span
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::repeated<2, plain<1>>;
#else
template struct smelt::repeated<2>;
#endif
