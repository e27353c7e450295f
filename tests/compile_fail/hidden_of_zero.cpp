// SPDX-License-Identifier: Apache-2.0
// expect: hidden<Size>: the hidden size must be at least 1
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

#ifdef REPAIRED
using width = smelt::hidden<8>;
#else
using width = smelt::hidden<0>;
#endif

static_assert(width::size >= 0);
