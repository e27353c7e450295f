// SPDX-License-Identifier: Apache-2.0
// expect: ask flops_per_sequence<A, Mask>, which is exact
//
// Sequences of 2, 3 and 2 tokens attend 12 positions in all: 12 / 7 for each token.
#include <smelt/smelt.hpp>

using namespace smelt;

struct body : transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>> {};

#ifdef REPAIRED
static_assert(flops_per_sequence<body, packed<2, 3, 2>> > 0);
#else
static_assert(flops_per_token<body, packed<2, 3, 2>> > 0);
#endif
