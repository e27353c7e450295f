// SPDX-License-Identifier: Apache-2.0
// expect: no_match_found<
// expect: a dense feed-forward moves parameters and FLOPs together
// compilers: g++ clang++ nvcc
#include <smelt/match/search.hpp>

using namespace smelt;

#ifdef REPAIRED
struct baseline : transformer<hidden<512>, gqa<8, 2, 64>, moe<64, 4, 384>, stack<plain<8>>> {};
#else
struct baseline : transformer<hidden<512>, gqa<8, 2, 64>, dense<1536>, stack<plain<8>>> {};
#endif

using twin = matched<baseline, recipe::smelt>;
static_assert(parameters<twin> > 0);
