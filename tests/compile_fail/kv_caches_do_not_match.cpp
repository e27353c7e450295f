// SPDX-License-Identifier: Apache-2.0
// expect: KV caches do not match: change kv heads . head size
// expect: kv_cache_elements_per_token
// expect: baseline_value<6144L?>, [A-Za-z=]*smelt::other_value<12672L?>
// expect: off_by_permille<1063L?>, [A-Za-z=]*smelt::tolerance_permille<40L?>
// compilers: g++ clang++ nvcc
#include <smelt/match/assert_matched.hpp>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

#ifdef REPAIRED
struct twin : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                          stack<plain<3>, looped<6, 2>, plain<3>>> {};
#else
struct twin : transformer<hidden<1056>, gqa<12, 4, 88>, moe<288, 8, 344>,
                          stack<plain<3>, looped<6, 2>, plain<3>>> {};
#endif

static_assert(assert_matched<baseline, twin>);
