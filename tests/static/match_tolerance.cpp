// SPDX-License-Identifier: Apache-2.0
//
// Where a budget match ends. The budgets below are small enough to be worked out by hand, so each
// boundary is met exactly: on it is inside, one step past it is not.
#include <smelt/match/assert_matched.hpp>

using namespace smelt;

namespace {

// One layer, hidden 1, one head of 25: parameters 2*25 + 2*25 + 2 + 3 f = 102 + 3 f, and under
// attended<1> FLOPs 6 (50 + 50 + 3 f) + 12 * 25 = 900 + 18 f.
template <std::int64_t Width>
struct tiny : transformer<hidden<1>, mha<1, 25>, dense<Width>, stack<plain<1>>, position::none> {};

static_assert(parameters<tiny<66>> == 300);
static_assert(flops_per_token<tiny<50>, attended<1>> == 1800);

// Parameters: 1 % of 300 is 3, the step of one element of width.
template <std::int64_t Width>
constexpr bool parameters_fit =
    budget_matched<tiny<66>, tiny<Width>, tolerance<1000, 10, 1000>, attended<1>>;
static_assert(parameters_fit<66> && parameters_fit<67> && parameters_fit<65>);
static_assert(!parameters_fit<68> && !parameters_fit<64>);

// FLOPs: 4 % of 1800 is 72, four steps.
template <std::int64_t Width>
constexpr bool flops_fit =
    budget_matched<tiny<50>, tiny<Width>, tolerance<40, 1000, 1000>, attended<1>>;
static_assert(flops_fit<54> && flops_fit<46>);
static_assert(!flops_fit<55> && !flops_fit<45>);

// KV cache: 2 * 100 elements, of which 4 % is 8; a head of 104 or 96 is on the boundary.
template <std::int64_t HeadDim>
struct cached : transformer<hidden<1>, mha<1, HeadDim>, dense<1>, stack<plain<1>>, position::none> {
};
template <std::int64_t HeadDim>
constexpr bool kv_fits = budget_matched<cached<100>, cached<HeadDim>, tolerance<1000, 1000, 40>>;
static_assert(kv_elements_per_token<cached<100>> == 200);
static_assert(kv_fits<104> && kv_fits<96> && !kv_fits<105> && !kv_fits<95>);

// A tolerance belongs to its own budget, and is of the Baseline's value: 104 is 4 % more than 100,
// but 100 is only 3.85 % less than 104, and 105 against 100 is outside where 100 against 105 is
// not.
static_assert(!budget_matched<cached<100>, cached<105>, tolerance<1000, 1000, 48>>);
static_assert(budget_matched<cached<105>, cached<100>, tolerance<1000, 1000, 48>>);
static_assert(!budget_matched<cached<100>, cached<104>, tolerance<1000, 1000, 39>>);
static_assert(!budget_matched<cached<100>, cached<101>, tolerance<1000, 1000, 0>>);
static_assert(budget_matched<cached<100>, cached<100>, tolerance<0, 0, 0>>);

// Quiet for what is no architecture.
static_assert(!budget_matched<tiny<66>, int> && !budget_matched<void, tiny<66>>);
static_assert(!budget_matched<tiny<66>, tiny<66>, int>);

// A language model is compared by its body: vocabularies of any size leave the verdict alone.
template <class Body, std::int64_t Vocabulary, class Tying = untied>
using speaking = language_model<Body, vocabulary<Vocabulary>, Tying>;
static_assert(budget_matched<speaking<tiny<66>, 1>, speaking<tiny<66>, 1'000'000, tied>>);
static_assert(budget_matched<tiny<66>, speaking<tiny<66>, 50'000>>);
static_assert(!budget_matched<speaking<tiny<66>, 50'000>, speaking<tiny<70>, 50'000>>);

// Every mask gives the same verdict as the mean number of positions that it means: causal<7> means
// 4. Its FLOPs per token need not be a whole number for that.
static_assert(budgets_of<tiny<50>, causal<7>>.flops == 7 * budgets_of<tiny<50>, attended<4>>.flops);
static_assert(budget_matched<tiny<50>, tiny<55>, tolerance<42, 1000, 1000>, causal<2>> ==
              budget_matched<tiny<50>, tiny<55>, tolerance<42, 1000, 1000>, packed<2, 2>>);

// The numbers behind a verdict: 105 against 100 is 50 permille of 100, 1.25 of a tolerance of 40.
static_assert(mismatch_of<cached<100>, cached<105>>.kv_elements == 1'250'000);
static_assert(mismatch_of<cached<100>, cached<104>>.kv_elements == 1'000'000);
static_assert(mismatch_of<tiny<66>, tiny<67>, tolerance<>, attended<1>>.parameters == 1'000'000);

// Sizes no product of which fits 64 bits: 4 % of 9.2e18, to the last unit.
constexpr std::int64_t huge = 9'000'000'000'000'000'000;
static_assert(detail::within_permille(huge, huge - 360'000'000'000'000'000, 40));
static_assert(!detail::within_permille(huge, huge - 360'000'000'000'000'001, 40));
static_assert(detail::within_permille(huge, huge + 90'000'000'000'000'000, 10));
static_assert(!detail::within_permille(huge, huge + 90'000'000'000'000'001, 10));
static_assert(detail::mismatch_millionths(huge, huge - 360'000'000'000'000'000, 40) == 1'000'000);
static_assert(detail::mismatch_millionths(huge, huge - 360'000'000'000'000'001, 40) == 1'000'001);

// What is printed is signed and rounded away from zero: 40.01 permille must not read as 40.
static_assert(detail::off_by_permille(100'000, 104'000) == 40);
static_assert(detail::off_by_permille(100'000, 104'001) == 41);
static_assert(detail::off_by_permille(100'000, 95'999) == -41);
static_assert(detail::off_by_permille(7, 7) == 0);

// What the search may leave out by an allowance is never inside the limit it stands for.
static_assert(detail::mismatch_millionths(1'000'003,
                                          1'000'003 + detail::allowance(1'000'003, 40, 700'000) + 1,
                                          40) > 700'000);

// The loud form, where there is nothing to say.
static_assert(assert_matched<tiny<66>, tiny<67>, tolerance<1000, 10, 1000>, attended<1>>);
static_assert(assert_matched<speaking<tiny<66>, 9>, tiny<66>>);

}  // namespace
