// SPDX-License-Identifier: Apache-2.0
// expect: the head size must be even
// expect: position::none
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 15>, moe<8, 2, 32>, stack<plain<4>>,
                                   position::none>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 15>, moe<8, 2, 32>, stack<plain<4>>>;
#endif
