// SPDX-License-Identifier: Apache-2.0
// expect: packed<Lengths[.][.][.]>: name at least one document length
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::packed<1>;
#else
template struct smelt::packed<>;
#endif
