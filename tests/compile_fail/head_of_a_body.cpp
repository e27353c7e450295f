// SPDX-License-Identifier: Apache-2.0
// expect: a body has no head to count; ask a language_model<Body
// compilers: g++ clang++ nvcc
#include <smelt/smelt.hpp>

using namespace smelt;

struct body : transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>> {};

#ifdef REPAIRED
static_assert(
    flops_per_token<language_model<body, vocabulary<256>>, attended<391>, convention::head_in> > 0);
#else
static_assert(flops_per_token<body, attended<391>, convention::head_in> > 0);
#endif
