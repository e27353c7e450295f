// SPDX-License-Identifier: Apache-2.0
// expect: hidden<Size>: the hidden size must be at least 1
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::hidden<8>;
#else
template struct smelt::hidden<-8>;
#endif
