// SPDX-License-Identifier: Apache-2.0
// expect: looped_recipe
#include <smelt/match/search.hpp>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

#ifdef REPAIRED
using wish = recipe::smelt;
#else
using wish = hidden<64>;
#endif

static_assert(parameters<matched<baseline, wish>> > 0);
