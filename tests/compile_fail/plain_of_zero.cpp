// SPDX-License-Identifier: Apache-2.0
// expect: plain<Layers>: a span needs at least 1 layer
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::plain<1>;
#else
template struct smelt::plain<0>;
#endif
