// SPDX-License-Identifier: Apache-2.0
// expect: a document needs at least 1 token
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::packed<3, 1>;
#else
template struct smelt::packed<3, 0>;
#endif
