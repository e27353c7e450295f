// SPDX-License-Identifier: Apache-2.0
// expect: Visits must be at least 1; plain<Layers> is one visit
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::looped<1, 1>;
#else
template struct smelt::looped<1, 0>;
#endif
