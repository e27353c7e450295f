// SPDX-License-Identifier: Apache-2.0
// expect: TopK must not exceed Experts
// expect: TopK different experts
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::moe<8, 8, 64>;
#else
template struct smelt::moe<8, 9, 64>;
#endif
