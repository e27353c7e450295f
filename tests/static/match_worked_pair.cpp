// SPDX-License-Identifier: Apache-2.0
//
// The paper's worked pair (200M, sparsity about 95 %), and one search: what a user writes.
#include <smelt/match/search.hpp>

#include <cstdint>

using namespace smelt;

namespace {

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};
struct looped_pair : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                                 stack<plain<3>, looped<6, 2>, plain<3>>> {};

static_assert(budget_matched<baseline, looped_pair>);
static_assert(assert_matched<baseline, looped_pair>);

// +2.9 % FLOPs, +0.4 % parameters, +3.1 % KV cache, as printed.
consteval std::int64_t tenths_of_percent(std::int64_t left, std::int64_t right) {
  return (2000 * (right - left) + left) / (2 * left);
}
static_assert(tenths_of_percent(budgets_of<baseline>.flops, budgets_of<looped_pair>.flops) == 29);
static_assert(tenths_of_percent(parameters<baseline>, parameters<looped_pair>) == 4);
static_assert(tenths_of_percent(kv_elements_per_token<baseline>,
                                kv_elements_per_token<looped_pair>) == 31);

using found = matched<baseline, recipe::smelt>;
static_assert(budget_matched<baseline, found>);
static_assert(mismatch_of<baseline, found>.worst() < mismatch_of<baseline, looped_pair>.worst());

}  // namespace
