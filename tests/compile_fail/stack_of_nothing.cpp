// SPDX-License-Identifier: Apache-2.0
// expect: an empty stack has no layers; name at least one span
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::stack<plain<12>>;
#else
template struct smelt::stack<>;
#endif
