// SPDX-License-Identifier: Apache-2.0
// expect: mixed_feed_forwards<
// expect: write the twin by hand and check it with assert_matched
// compilers: g++ clang++ nvcc
#include <smelt/match/search.hpp>

using namespace smelt;

#ifdef REPAIRED
struct baseline : transformer<hidden<512>, gqa<8, 2, 64>, moe<64, 4, 384>, stack<plain<8>>> {};
#else
struct baseline : transformer<hidden<512>, gqa<8, 2, 64>, moe<64, 4, 384>,
                              stack<plain<1, dense<1536>>, plain<7>>> {};
#endif

using twin = matched<baseline, recipe::smelt>;
static_assert(parameters<twin> > 0);
