// SPDX-License-Identifier: Apache-2.0
// expect: no_match_found<
// expect: near_miss<smelt::kv_cache_elements_per_token, smelt::off_by_permille<-?[0-9]+L?>
// expect: give the recipe finer multiples or a wider width_band_permille
// compilers: g++ clang++ nvcc
//
// Two heads of 16 over 4 layers are 21.3 elements in each of 6 executed layers: no even head fits.
#include <smelt/match/search.hpp>

using namespace smelt;

#ifdef REPAIRED
struct baseline : transformer<hidden<96>, gqa<4, 2, 24>, moe<64, 4, 48>, stack<plain<8>>> {};
#else
struct baseline : transformer<hidden<64>, gqa<4, 2, 16>, moe<16, 2, 32>, stack<plain<4>>> {};
#endif

using twin = matched<baseline, recipe::smelt>;
static_assert(parameters<twin> > 0);
