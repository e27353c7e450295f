// SPDX-License-Identifier: Apache-2.0
// expect: looped<Layers, Visits>: a span needs at least 1 layer
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::looped<1, 2>;
#else
template struct smelt::looped<0, 2>;
#endif
