// SPDX-License-Identifier: Apache-2.0
// expect: a query attends at least itself
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::attended<1>;
#else
template struct smelt::attended<0>;
#endif
