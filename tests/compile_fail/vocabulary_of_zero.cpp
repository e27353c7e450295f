// SPDX-License-Identifier: Apache-2.0
// expect: vocabulary<Size>: the vocabulary needs at least 1 token
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::vocabulary<1>;
#else
template struct smelt::vocabulary<0>;
#endif
