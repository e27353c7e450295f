// SPDX-License-Identifier: Apache-2.0
//
// Recipes: the stacks they make, and what a twin keeps of its Baseline.
#include <smelt/match/search.hpp>

#include <concepts>

using namespace smelt;

namespace {

// The paper's spans, 1-based: 3-7 of 10 layers, 4-9 of 12, 6-15 of 20, 8-22 of 30.
template <std::int64_t Layers>
using smelt_stack = recipe::smelt::stack_for<Layers>;
static_assert(std::same_as<smelt_stack<10>, stack<plain<2>, looped<5, 2>, plain<3>>>);
static_assert(std::same_as<smelt_stack<12>, stack<plain<3>, looped<6, 2>, plain<3>>>);
static_assert(std::same_as<smelt_stack<20>, stack<plain<5>, looped<10, 2>, plain<5>>>);
static_assert(std::same_as<smelt_stack<30>, stack<plain<7>, looped<15, 2>, plain<8>>>);
// Few layers: a half is rounded downwards, and a span has at least one layer.
static_assert(std::same_as<smelt_stack<1>, stack<looped<1, 2>>>);
static_assert(std::same_as<smelt_stack<2>, stack<looped<1, 2>, plain<1>>>);
static_assert(std::same_as<smelt_stack<3>, stack<plain<1>, looped<1, 2>, plain<1>>>);

// The paper's ablation of the span at 12 layers: 2, 4, 6, 8, 10, 12 looped layers.
template <std::int64_t Percent>
constexpr std::int64_t span_of_12 =
    recipe::looped_middle<recipe::span_percent<Percent>>::span_layers(12);
static_assert(span_of_12<17> == 2 && span_of_12<33> == 4 && span_of_12<50> == 6);
static_assert(span_of_12<67> == 8 && span_of_12<83> == 10 && span_of_12<100> == 12);

// Visits and depth, parts in any order.
using deep = recipe::looped_middle<recipe::depth<15>, recipe::visits<3>, recipe::span_percent<33>>;
static_assert(std::same_as<deep::stack_for<12>, stack<plain<5>, looped<5, 3>, plain<5>>>);
using whole = recipe::looped_middle<recipe::span_percent<100>>;
static_assert(std::same_as<whole::stack_for<12>, stack<looped<12, 2>>>);
using unlooped = recipe::looped_middle<recipe::visits<1>, recipe::depth<15>>;
static_assert(std::same_as<unlooped::stack_for<12>, stack<plain<15>>>);

// A twin keeps top_k, the shared expert's share, and every option; residuals follow the recipe.
struct ornate
    : transformer<hidden<512>, gqa<8, 4, 64>, moe<32, 4, 256, shared<512>>, stack<plain<8>>,
                  router::plain_softmax, position::rope<500'000>, qk_norm::per_head> {};
using ornate_twin = matched<ornate, recipe::smelt>;
static_assert(budget_matched<ornate, ornate_twin>);
static_assert(ornate_twin::spans[0].ffn.top_k == 4);
static_assert(ornate_twin::spans[0].ffn.shared_width == 2 * ornate_twin::spans[0].ffn.width);
static_assert(ornate_twin::attention.norm == qk_norm_kind::per_head);
static_assert(ornate_twin::attention.rope_base == 500'000);
static_assert(!ornate_twin::router_renormalized && ornate_twin::residual_scaled);
using unscaled_twin = matched<ornate, recipe::looped_middle<residual_scale::one>>;
static_assert(!unscaled_twin::residual_scaled);

struct unusual : transformer<hidden<512>, gqa<8, 4, 64>, moe<64, 4, 256>, stack<plain<8>>,
                             kv_cache::shared, position::none, qk_norm::full_width> {};
using unusual_twin = matched<unusual, recipe::smelt>;
static_assert(budget_matched<unusual, unusual_twin>);
static_assert(unusual_twin::attention.kv_shared_by_visits);
static_assert(unusual_twin::attention.rope_base == 0);
static_assert(unusual_twin::attention.norm == qk_norm_kind::full_width);
// With one cache for all visits the kv width need not shrink by the executed layers.
static_assert(unusual_twin::attention.kv_width() * 100 >= 4 * 64 * 96);

// Spans written in pieces are one feed-forward all the same.
struct pieces : transformer<hidden<512>, gqa<8, 4, 64>, moe<64, 4, 256>,
                            stack<plain<3>, repeated<2, plain<2>>, plain<1, moe<64, 4, 256>>>> {};
static_assert(budget_matched<pieces, matched<pieces, recipe::smelt>>);

// A language model gives a language model: same vocabulary, same tying, bodies matched.
using speaking = language_model<ornate, vocabulary<50'304>, tied>;
using speaking_twin = matched<speaking, recipe::smelt>;
static_assert(std::same_as<speaking_twin, language_model<ornate_twin, vocabulary<50'304>, tied>>);
static_assert(budget_matched<speaking, speaking_twin>);

// A query width of its own keeps its ratio to hidden: Qwen3-30B-A3B has twice its hidden.
struct qwen3_30b : transformer<hidden<2048>, gqa<32, 4, 128>, moe<128, 8, 768>, stack<plain<48>>,
                               qk_norm::per_head> {};
using qwen3_twin = matched<qwen3_30b, recipe::smelt>;
static_assert(qwen3_twin::attention.query_width() == 2 * qwen3_twin::hidden_size);

// Multi-head attention: the cache sets the query width, so its ratio to hidden moves, by at most
// a fifth. The heads stay multi-head.
struct olmoe : transformer<hidden<2048>, mha<16, 128>, moe<64, 8, 1024>, stack<plain<16>>,
                           qk_norm::full_width> {};
using olmoe_twin = matched<olmoe, recipe::smelt>;
static_assert(budget_matched<olmoe, olmoe_twin>);
static_assert(olmoe_twin::attention.query_heads == olmoe_twin::attention.kv_heads);
static_assert(5 * olmoe_twin::attention.query_width() >= 4 * olmoe_twin::hidden_size);

// A dense Baseline has a twin where no layer is paid twice: other depth, same cost.
struct compact : transformer<hidden<512>, gqa<8, 2, 64>, dense<1536>, stack<plain<8>>> {};
using deeper = matched<compact, recipe::looped_middle<recipe::visits<1>, recipe::depth<10>>>;
static_assert(budget_matched<compact, deeper>);
static_assert(layers<deeper> == 10 && deeper::spans[0].ffn.is_dense());

// The user's multiples, tolerances and masks hold.
struct plain_moe : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {
};
using aligned =
    matched<plain_moe,
            recipe::looped_middle<recipe::hidden_multiple<16>, recipe::head_size_multiple<8>,
                                  recipe::expert_width_multiple<16>, recipe::experts_multiple<32>>>;
static_assert(aligned::hidden_size % 16 == 0 && aligned::attention.head_dim % 8 == 0);
static_assert(aligned::spans[0].ffn.width % 16 == 0 && aligned::spans[0].ffn.experts % 32 == 0);
using tight = tolerance<10, 5, 20>;
static_assert(budget_matched<plain_moe, matched<plain_moe, recipe::smelt, tight, causal<4096>>,
                             tight, causal<4096>>);

// Expert width / hidden stays in the band: 432 / 1280, 5 % at most.
using banded = matched<plain_moe, recipe::looped_middle<recipe::width_band_permille<50>>>;
static_assert(1000 * banded::spans[0].ffn.width * 1280 <= 1050 * 432 * banded::hidden_size);
static_assert(1000 * banded::spans[0].ffn.width * 1280 >= 950 * 432 * banded::hidden_size);

}  // namespace
