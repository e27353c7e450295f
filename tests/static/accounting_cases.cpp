// SPDX-License-Identifier: Apache-2.0
//
// Ways in which counts of parameters, FLOPs and caches have gone wrong elsewhere, one section each.
// Expected values are worked out by hand beside them, or counted by a loop over what is computed.
// (Illegal types have their own tests, in tests/compile_fail.)
#include <smelt/arch/scales.hpp>

#include <concepts>
#include <initializer_list>

#include "printed.hpp"

namespace {

using namespace smelt;
using printed::within;

template <class Attention, class... Options>
using one_layer = transformer<hidden<512>, Attention, moe<16, 2, 96>, stack<plain<1>>, Options...>;

// -- Head size is not hidden / heads ------------------------------------------------------------

// Qwen3-235B: 64 heads of 128 over hidden 4096. One layer: 2 * 4096 * 8192 for queries and output,
// 2 * 4096 * 512 for keys and values.
using wide_queries =
    transformer<hidden<4096>, gqa<64, 4, 128>, moe<128, 8, 1536>, stack<plain<94>>>;
static_assert(wide_queries::attention.query_width() == 2 * wide_queries::hidden_size);
static_assert(parameters_split<wide_queries>.attention == 94 * (67'108'864LL + 4'194'304));
// QK and AV are 2 * 8192 each, per layer and attended position; 3 times for training.
static_assert(flops_per_token_split<wide_queries, attended<1>>.attention == 3 * 94 * 2 * 2 * 8192);
// Narrower than hidden is possible as well: 4 heads of 64.
static_assert(parameters_split<one_layer<mha<4, 64>>>.attention == 4 * 512 * 256);

// -- GQA cuts projections and cache, not QK and AV ----------------------------------------------

using full_heads = one_layer<mha<8, 64>>;
using grouped = one_layer<gqa<8, 2, 64>>;
static_assert(flops_per_token_split<full_heads, attended<100>, convention::forward>.attention ==
              204'800);
static_assert(flops_per_token_split<grouped, attended<100>, convention::forward>.attention ==
              204'800);
// 2 * (4 * 512 * 512) against 2 * (2 * 512 * 512 + 2 * 512 * 128).
static_assert(flops_per_token_split<full_heads, attended<100>, convention::forward>.projections ==
              2'097'152);
static_assert(flops_per_token_split<grouped, attended<100>, convention::forward>.projections ==
              1'310'720);
static_assert(kv_elements_per_token<full_heads> == 1024 && kv_elements_per_token<grouped> == 256);

// -- An expert has its own width, and top-k multiplies -------------------------------------------

// 3 * 512 * 96 = 147'456 per expert: 16 are held, 2 are met.
static_assert(parameters_split<grouped>.experts == 16 * 147'456);
static_assert(parameters<grouped> - active_parameters<grouped> == 14 * 147'456);
static_assert(flops_per_token_split<grouped, attended<1>, convention::forward>.experts ==
              2 * 2 * 147'456);
template <std::int64_t TopK>
using routed = transformer<hidden<512>, mha<8, 64>, moe<16, TopK, 96>, stack<plain<1>>>;
static_assert(flops_per_token_split<routed<8>, attended<1>>.experts ==
              8 * flops_per_token_split<routed<1>, attended<1>>.experts);
static_assert(parameters<routed<8>> == parameters<routed<1>>);

// -- Dense layers among MoE layers, shared experts of their own width ----------------------------

// DeepSeekMoE-16B: 1 dense layer of 10944, 27 MoE layers, 64 experts of 1408, shared width 2816.
using mixed = transformer<hidden<2048>, mha<16, 128>, moe<64, 6, 1408, shared<2816>>,
                          stack<plain<1, dense<10944>>, plain<27>>>;
static_assert(parameters_split<mixed>.experts == 67'239'936 + 27LL * 553'648'128);
static_assert(parameters_split<mixed>.shared_experts == 27 * 17'301'504);
static_assert(parameters_split<mixed>.router == 27 * 131'072);
// Published as 2.8e9 active of 16.4e9, embedding and head included.
static_assert(active_parameters<language_model<mixed, vocabulary<102400>>> == 2'828'650'496);
static_assert(flops_per_token_split<mixed, attended<1>, convention::forward>.experts ==
              2 * (67'239'936LL + 27 * (6 * 8'650'752 + 17'301'504)));
static_assert(flops_per_token_split<mixed, attended<1>, convention::forward>.router ==
              2 * 27 * 131'072);
// Which layers are dense is a matter of order, not only of number.
static_assert(mixed::spans[0].ffn.is_dense() && !mixed::spans[1].ffn.is_dense());
// MoE layers in a dense stack, alternating: 3 * 8 * 64 and 4 * 3 * 8 * 16, twice each.
using alternating = transformer<hidden<8>, mha<1, 8>, dense<64>,
                                stack<repeated<2, plain<1>, plain<1, moe<4, 1, 16>>>>>;
static_assert(parameters_split<alternating>.experts == 2 * 1536 + 2 * 1536);
static_assert(active_parameters<alternating> == parameters<alternating> - 2 * 3 * 384);

// -- The router counts ---------------------------------------------------------------------------

template <class A>
constexpr double router_percent =
    100.0 * static_cast<double>(flops_per_token_split<A, printed::documents>.router) /
    static_cast<double>(flops_per_token<A, printed::documents>);
static_assert(printed::rounds_to(router_percent<paper::baseline_200m_s95>, 1.3, 1));
static_assert(printed::rounds_to(router_percent<paper::smelt_200m_s95>, 2.4, 1));
// At the highest sparsity the router alone is more than the 4 % that separate match from mismatch.
static_assert(router_percent<paper::smelt_200m_s97> > 4.0);
// 12 layers, 1280 * 192, 6 FLOPs.
static_assert(
    flops_per_token<paper::baseline_200m_s95, printed::documents> -
        flops_per_token<paper::baseline_200m_s95, printed::documents, convention::router_out> ==
    6LL * 12 * 1280 * 192);

// -- The embedding is a lookup, the head a product, tied or not -----------------------------------

using tied_model = language_model<grouped, vocabulary<1000>, tied>;
using untied_model = language_model<grouped, vocabulary<1000>, untied>;
static_assert(parameters<tied_model> - parameters<grouped> == 512'000 + 512);
static_assert(parameters<untied_model> - parameters<grouped> == 1'024'000 + 512);
static_assert(non_embedding_parameters<tied_model> == non_embedding_parameters<untied_model>);
static_assert(flops_per_token<tied_model, attended<391>> ==
              flops_per_token<grouped, attended<391>>);
static_assert(flops_per_token<tied_model, attended<391>, convention::head_in> -
                  flops_per_token<tied_model, attended<391>> ==
              6 * 512'000);
static_assert(flops_per_token<tied_model, attended<391>, convention::head_in> ==
              flops_per_token<untied_model, attended<391>, convention::head_in>);
static_assert(flops_per_step<tied_model>(10, 55).head == 10 * 6 * 512'000);
static_assert(flops_per_step<grouped>(10, 55).head == 0);
// Neither dilutes sparsity: it is the bodies' affair.
static_assert(kv_elements_per_token<tied_model> == kv_elements_per_token<grouped>);

// -- Causal is half of full; packed documents see only themselves ---------------------------------

// Who attends whom, one by one: `first` is the first token of the query's document.
consteval std::int64_t pairs_by_looking(std::initializer_list<std::int64_t> lengths, bool full) {
  std::int64_t pairs = 0;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t query = first; query < first + length; ++query) {
      for (std::int64_t key = first; key < first + length; ++key) pairs += full || key <= query;
    }
    first += length;
  }
  return pairs;
}
static_assert(causal<37>::pairs == pairs_by_looking({37}, false));
static_assert(full_mask<37>::pairs == pairs_by_looking({37}, true));
static_assert(packed<5, 1, 20, 11>::pairs == pairs_by_looking({5, 1, 20, 11}, false));
static_assert(packed<5, 1, 20, 11>::tokens == 37 && causal<37>::tokens == 37);

// Attention alone feels the mask. 4 * 512 per pair, forward.
static_assert(flops_per_sequence_split<grouped, causal<4096>, convention::forward>.attention ==
              2048LL * 8'390'656);
static_assert(flops_per_sequence_split<grouped, full_mask<4096>, convention::forward>.attention ==
              2048LL * 16'777'216);
static_assert(
    flops_per_sequence_split<grouped, packed<1000, 3096>, convention::forward>.attention ==
    2048LL * (500'500 + 4'794'156));
static_assert(flops_per_sequence_split<grouped, causal<4096>>.experts ==
              flops_per_sequence_split<grouped, full_mask<4096>>.experts);
// Eight documents of 512 are not one of 4096, nor eight contexts.
static_assert(flops_per_sequence<grouped, packed<512, 512, 512, 512, 512, 512, 512, 512>> ==
              8 * flops_per_sequence<grouped, causal<512>>);
// The paper's mean: one document of 781 tokens has 781 * 782 / 2 pairs, 391 per token.
static_assert(flops_per_token<grouped, causal<781>> == flops_per_token<grouped, attended<391>>);

// -- A looped layer: every visit in FLOPs and cache, once in parameters ---------------------------

template <class Stack, class... Options>
using body = transformer<hidden<512>, gqa<8, 2, 64>, moe<16, 2, 96>, Stack, Options...>;
using twice = body<stack<plain<3>, looped<6, 2>, plain<3>>>;
static_assert(layers<twice> == 12 && executed_layers<twice> == 18);
static_assert(parameters<twice> == parameters<body<stack<plain<12>>>>);
static_assert(flops_per_token<twice, attended<391>> ==
              flops_per_token<body<stack<plain<18>>>, attended<391>>);
static_assert(flops_per_token<twice, attended<391>> ==
              18 * flops_per_token<grouped, attended<391>>);
static_assert(kv_elements_per_token<twice> == 18 * 256);
static_assert(active_parameters<twice> == 12 * active_parameters<grouped>);
static_assert(active_parameters<twice, convention::per_execution> ==
              18 * active_parameters<grouped>);
// One visit is none too many, and a span may be the whole stack.
static_assert(parameters<body<stack<looped<4, 1>>>> == parameters<body<stack<plain<4>>>> &&
              flops_per_token<body<stack<looped<4, 1>>>, attended<9>> ==
                  flops_per_token<body<stack<plain<4>>>, attended<9>>);
static_assert(flops_per_token<body<stack<looped<1, 12>>>, attended<9>> ==
              flops_per_token<body<stack<plain<12>>>, attended<9>>);
// Copies with weights of their own are parameters again.
static_assert(parameters<body<stack<repeated<3, looped<2, 5>>>>> == 6 * parameters<grouped>);
static_assert(executed_layers<body<stack<repeated<3, looped<2, 5>>>>> == 30);
// The factor 1/visits of a residual update costs nothing.
static_assert(flops_per_token<body<stack<looped<2, 2>>, residual_scale::one>, attended<9>> ==
              flops_per_token<body<stack<looped<2, 2>>>, attended<9>>);

// One cache for all visits: 12 physical layers. Later visits project no keys and values, which
// saves 6 layers of 2 * 512 * 128 weights, 6 FLOPs each; they still attend.
using shared_cache = body<stack<plain<3>, looped<6, 2>, plain<3>>, kv_cache::shared>;
static_assert(kv_elements_per_token<shared_cache> == 12 * 256);
// (Case 25: a cache has a slot per visit, 18 above, unless the visits share it.)
static_assert(parameters<shared_cache> == parameters<twice>);
static_assert(flops_per_token<twice, attended<391>> -
                  flops_per_token<shared_cache, attended<391>> ==
              6 * 6 * 131'072);
static_assert(flops_per_token_split<shared_cache, attended<391>>.attention ==
              flops_per_token_split<twice, attended<391>>.attention);

// -- Sizes past 32 and past 63 bit ----------------------------------------------------------------

static_assert(std::same_as<decltype(parameters<twice>), const std::int64_t>);
static_assert(std::same_as<decltype(flops_per_token<twice, attended<1>>), const std::int64_t>);
static_assert(std::same_as<decltype(kv_elements_per_token<twice>), const std::int64_t>);
static_assert(std::same_as<decltype(causal<1>::pairs), const std::int64_t>);
static_assert(causal<1'000'000>::pairs == 500'000'500'000);
// A run of the paper's longest horizon: 215.6e9 tokens at 10.23e9 FLOPs are 2.2e21; 2^63 is 9.2e18.
static_assert(run_flops<paper::baseline_1600m_s97, printed::documents>(215.6e9) > 9.3e18);
static_assert(within(run_flops<paper::baseline_1600m_s97, printed::documents>(215.6e9),
                     215.6e9 * 10.23e9, 0.001));
static_assert(within(run_flops<grouped, causal<4096>>(4096.0 * 1e9),
                     1e9 * static_cast<double>(flops_per_sequence<grouped, causal<4096>>), 1e-12));

// -- A norm has a gain and no bias; the gain of keys is as wide as the keys -----------------------

static_assert(parameters_split<grouped>.norms == 2 * 512);
static_assert(parameters_split<one_layer<gqa<8, 2, 64>, qk_norm::per_head>>.norms ==
              2 * 512 + 2 * 64);
static_assert(parameters_split<one_layer<gqa<8, 2, 64>, qk_norm::full_width>>.norms ==
              2 * 512 + 512 + 128);
static_assert(parameters_split<language_model<grouped, vocabulary<10>>>.norms == 2 * 512 + 512);
// Active parameters contain all of it.
static_assert(active_parameters<one_layer<gqa<8, 2, 64>, qk_norm::full_width>> -
                  active_parameters<grouped> ==
              640);

// -- Units: FLOPs or products, token or sequence, forward or training, bytes or elements ----------

// A dense body without attention to anyone else: two FLOPs per weight of its matrices.
using dense_body = transformer<hidden<64>, mha<4, 16>, dense<160>, stack<plain<5>>>;
static_assert(flops_per_token<dense_body, attended<1>, convention::forward> ==
              2 * (parameters<dense_body> - 5 * 128) + 5 * 4 * 64);
static_assert(flops_per_token<dense_body, attended<7>> ==
              3 * flops_per_token<dense_body, attended<7>, convention::forward>);
static_assert(flops_per_sequence<dense_body, causal<781>> ==
              781 * flops_per_token<dense_body, causal<781>>);
static_assert(flops_per_step<dense_body>(3 * 781, 3 * causal<781>::pairs).total() ==
              3 * flops_per_sequence<dense_body, causal<781>>);
static_assert(kv_bytes_per_token<dense_body> == 2 * kv_elements_per_token<dense_body>);
static_assert(kv_bytes_per_token<dense_body, storage::float32> ==
              4 * kv_elements_per_token<dense_body>);
static_assert(kv_bytes_per_token<dense_body, storage::fp8> == kv_elements_per_token<dense_body>);
// The parts are the whole.
static_assert(flops_per_token_split<mixed, attended<391>>.total() ==
              flops_per_token<mixed, attended<391>>);
static_assert(parameters_split<mixed>.total() == parameters<mixed>);

}  // namespace
