// SPDX-License-Identifier: Apache-2.0
// expect: parameters do not match: change the number of experts
// expect: total_parameters
// expect: baseline_value<3872225280L?>, [A-Za-z=]*smelt::other_value<3781654272L?>
// expect: off_by_permille<-24L?>, [A-Za-z=]*smelt::tolerance_permille<10L?>
// compilers: g++ clang++ nvcc
#include <smelt/match/assert_matched.hpp>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

#ifdef REPAIRED
struct twin : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                          stack<plain<3>, looped<6, 2>, plain<3>>> {};
#else
struct twin : transformer<hidden<1056>, gqa<12, 2, 88>, moe<280, 8, 352>,
                          stack<plain<3>, looped<6, 2>, plain<3>>> {};
#endif

static_assert(assert_matched<baseline, twin>);
