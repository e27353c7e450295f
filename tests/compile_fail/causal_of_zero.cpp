// SPDX-License-Identifier: Apache-2.0
// expect: causal<Length>: the sequence needs at least 1 token
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::causal<1>;
#else
template struct smelt::causal<0>;
#endif
