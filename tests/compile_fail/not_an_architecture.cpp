// SPDX-License-Identifier: Apache-2.0
// expect: countable
#include <smelt/smelt.hpp>

using namespace smelt;

struct body : transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>> {};

#ifdef REPAIRED
static_assert(parameters<body> > 0);
#else
static_assert(parameters<hidden<64>> > 0);
#endif
