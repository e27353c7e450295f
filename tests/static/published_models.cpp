// SPDX-License-Identifier: Apache-2.0
//
// Published models, to the last parameter. Totals are those of the published weight files, so they
// check the formulas from outside.
#include <smelt/budget/kv_cache.hpp>
#include <smelt/budget/parameters.hpp>

namespace {

using namespace smelt;

// Qwen3-30B-A3B.
struct qwen3_30b_body : transformer<hidden<2048>, gqa<32, 4, 128>, moe<128, 8, 768>,
                                    stack<plain<48>>, qk_norm::per_head> {};
struct qwen3_30b : language_model<qwen3_30b_body, vocabulary<151936>, untied> {};
static_assert(parameters<qwen3_30b> == 30'532'122'624);
static_assert(active_parameters<qwen3_30b> == 3'353'032'704);
static_assert(non_embedding_parameters<qwen3_30b> == 29'909'792'768);
static_assert(non_embedding_active_parameters<qwen3_30b> == 2'730'702'848);
static_assert(kv_elements_per_token<qwen3_30b> == 49'152);

// Qwen3-235B-A22B: query width 8192 over a hidden size of 4096.
struct qwen3_235b_body : transformer<hidden<4096>, gqa<64, 4, 128>, moe<128, 8, 1536>,
                                     stack<plain<94>>, qk_norm::per_head> {};
struct qwen3_235b : language_model<qwen3_235b_body, vocabulary<151936>, untied> {};
static_assert(parameters<qwen3_235b> == 235'093'634'560);
static_assert(active_parameters<qwen3_235b> == 22'190'763'520);
static_assert(non_embedding_parameters<qwen3_235b> == 233'848'974'848);
static_assert(non_embedding_active_parameters<qwen3_235b> == 20'946'103'808);
static_assert(kv_elements_per_token<qwen3_235b> == 96'256);

// OLMoE-1B-7B: queries and keys normalised over their full width.
struct olmoe_body : transformer<hidden<2048>, gqa<16, 16, 128>, moe<64, 8, 1024>, stack<plain<16>>,
                                qk_norm::full_width, router::plain_softmax> {};
struct olmoe : language_model<olmoe_body, vocabulary<50304>, untied> {};
static_assert(parameters<olmoe> == 6'919'161'856);
static_assert(active_parameters<olmoe> == 1'282'017'280);
static_assert(non_embedding_parameters<olmoe> == 6'713'116'672);
static_assert(non_embedding_active_parameters<olmoe> == 1'075'972'096);
static_assert(kv_elements_per_token<olmoe> == 65'536);

// Mixtral-8x7B: few, wide experts.
struct mixtral_body
    : transformer<hidden<4096>, gqa<32, 8, 128>, moe<8, 2, 14336>, stack<plain<32>>> {};
struct mixtral : language_model<mixtral_body, vocabulary<32000>, untied> {};
static_assert(parameters<mixtral> == 46'702'792'704);
static_assert(active_parameters<mixtral> == 12'879'925'248);
static_assert(non_embedding_parameters<mixtral> == 46'440'648'704);
static_assert(non_embedding_active_parameters<mixtral> == 12'617'781'248);
static_assert(kv_elements_per_token<mixtral> == 65'536);

// Beyond the four: what they leave untested.

// DeepSeekMoE-16B: a dense first layer, shared experts of a width of their own (two of 1408).
struct deepseek_moe_body : transformer<hidden<2048>, mha<16, 128>, moe<64, 6, 1408, shared<2816>>,
                                       stack<plain<1, dense<10944>>, plain<27>>> {};
struct deepseek_moe : language_model<deepseek_moe_body, vocabulary<102400>, untied> {};
static_assert(parameters<deepseek_moe> == 16'375'728'128);

// Llama-3.1-8B: dense, untied. Llama-3.2-1B: dense, tied, heads of 64.
struct llama_8b_body : transformer<hidden<4096>, gqa<32, 8, 128>, dense<14336>, stack<plain<32>>> {
};
struct llama_8b : language_model<llama_8b_body, vocabulary<128256>, untied> {};
static_assert(parameters<llama_8b> == 8'030'261'248);
static_assert(active_parameters<llama_8b> == parameters<llama_8b>);
struct llama_1b_body : transformer<hidden<2048>, gqa<32, 8, 64>, dense<8192>, stack<plain<16>>> {};
struct llama_1b : language_model<llama_1b_body, vocabulary<128256>, tied> {};
static_assert(parameters<llama_1b> == 1'235'814'400);

// Qwen3-0.6B: dense, tied, query width twice the hidden size, gains per head.
struct qwen3_small_body
    : transformer<hidden<1024>, gqa<16, 8, 128>, dense<3072>, stack<plain<28>>, qk_norm::per_head> {
};
struct qwen3_small : language_model<qwen3_small_body, vocabulary<151936>, tied> {};
static_assert(parameters<qwen3_small> == 596'049'920);

}  // namespace
