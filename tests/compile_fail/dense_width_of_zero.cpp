// SPDX-License-Identifier: Apache-2.0
// expect: dense<Width>: the width must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::dense<64>;
#else
template struct smelt::dense<0>;
#endif
