// SPDX-License-Identifier: Apache-2.0
// expect: no_twin_to_try<
// expect: give the recipe finer multiples
#include <smelt/match/search.hpp>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

#ifdef REPAIRED
using wish = recipe::smelt;
#else
using wish = recipe::looped_middle<recipe::hidden_multiple<4096>>;
#endif

static_assert(parameters<matched<baseline, wish>> > 0);
