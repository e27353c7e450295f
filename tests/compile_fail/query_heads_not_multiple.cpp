// SPDX-License-Identifier: Apache-2.0
// expect: QueryHeads must be a multiple of KvHeads
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::gqa<8, 4, 64>;
#else
template struct smelt::gqa<7, 4, 64>;
#endif
