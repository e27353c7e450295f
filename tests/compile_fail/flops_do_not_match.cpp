// SPDX-License-Identifier: Apache-2.0
// expect: training FLOPs do not match: a narrower hidden size or expert width lowers them
// expect: training_flops_per_token
// expect: baseline_value<1328394240L?>, [A-Za-z=]*smelt::other_value<1442441088L?>
// expect: off_by_permille<86L?>, [A-Za-z=]*smelt::tolerance_permille<40L?>
// compilers: g++ clang++ nvcc
#include <smelt/match/assert_matched.hpp>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

#ifdef REPAIRED
struct twin : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                          stack<plain<3>, looped<6, 2>, plain<3>>> {};
#else
struct twin : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                          stack<plain<3>, looped<7, 2>, plain<2>>> {};
#endif

static_assert(assert_matched<baseline, twin>);
