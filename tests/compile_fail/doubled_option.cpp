// SPDX-License-Identifier: Apache-2.0
// expect: the same kind of option is named twice; keep one
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>,
                                   qk_norm::per_head>;
#else
template struct smelt::transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>,
                                   qk_norm::per_head, qk_norm::full_width>;
#endif
