// SPDX-License-Identifier: Apache-2.0
// expect: a tolerance must be 0 to 1000 permille
#include <smelt/match/assert_matched.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::tolerance<40, 10, 40>;
#else
template struct smelt::tolerance<40, -10, 40>;
#endif
