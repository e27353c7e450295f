// SPDX-License-Identifier: Apache-2.0
// expect: the base must be at least 2
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::position::rope<2>;
#else
template struct smelt::position::rope<1>;
#endif
