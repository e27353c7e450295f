// SPDX-License-Identifier: Apache-2.0
// expect: every span must be plain<>, looped<> or repeated<>
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::stack<plain<1>, plain<2>>;
#else
template struct smelt::stack<plain<1>, hidden<2>>;
#endif
