// SPDX-License-Identifier: Apache-2.0
//
// The paper's Table 1 as static_asserts: which budgets a looped design shares with its unlooped
// reference, by the paper's tolerances of 4 % FLOPs, 1 % parameters, 4 % KV cache.
//
// Two entries of the table are neither yes nor no. "Perplexity only" (Saunshi et al.) and "wall
// clock" (Loopie) name what was equal instead of FLOPs, so FLOPs count as not matched.
#include <smelt/arch/prior.hpp>
#include <smelt/match/budget_matched.hpp>

#include "printed.hpp"

namespace {

using namespace smelt;
using namespace printed;

enum answer : bool { no = false, yes = true };

struct verdict {
  answer flops = no;
  answer parameters = no;
  answer kv = no;
  constexpr bool operator==(const verdict&) const = default;
};

constexpr answer as_answer(bool holds) {
  return holds ? yes : no;
}

// Each budget on its own; a mismatch is in millionths of its tolerance.
template <class Reference, class Looped, class Mask = documents>
consteval verdict judge() {
  constexpr mismatch apart = mismatch_of<Reference, Looped, tolerance<40, 10, 40>, Mask>;
  return {as_answer(apart.flops <= 1'000'000), as_answer(apart.parameters <= 1'000'000),
          as_answer(apart.kv_elements <= 1'000'000)};
}

// The share of physical layers that are looped, in percent.
template <class A>
constexpr double looped_percent = [] {
  std::int64_t looped_layers = 0;
  for (const span_shape& span : A::spans) looped_layers += span.visits > 1 ? span.layers : 0;
  return 100.0 * static_cast<double>(looped_layers) / static_cast<double>(layers<A>);
}();

// Table 1: span, then FLOPs / parameters / KV.

static_assert(looped_percent<prior::huginn> == 50.0);
static_assert(judge<prior::huginn_reference, prior::huginn>() == verdict{no, yes, no});

static_assert(looped_percent<prior::ouro> == 100.0);
static_assert(judge<prior::ouro_reference, prior::ouro>() == verdict{no, yes, no});

static_assert(rounds_to(looped_percent<prior::saunshi>, 33, 0));
static_assert(judge<prior::saunshi_reference, prior::saunshi>() == verdict{no, no, no});

static_assert(rounds_to(looped_percent<prior::schwethelm_r2>, 67, 0));
static_assert(rounds_to(looped_percent<prior::schwethelm_r3>, 50, 0));
static_assert(rounds_to(looped_percent<prior::schwethelm_r4>, 33, 0));
static_assert(judge<prior::schwethelm_r2_reference, prior::schwethelm_r2>() ==
              verdict{yes, no, yes});
static_assert(judge<prior::schwethelm_r3_reference, prior::schwethelm_r3>() ==
              verdict{yes, no, yes});
static_assert(judge<prior::schwethelm_r4_reference, prior::schwethelm_r4>() ==
              verdict{yes, no, yes});

static_assert(rounds_to(looped_percent<prior::parcae>, 33, 0));
static_assert(judge<prior::parcae_reference, prior::parcae>() == verdict{no, yes, no});

static_assert(rounds_to(looped_percent<prior::loopmoe>, 33, 0));
static_assert(judge<prior::loopmoe_reference, prior::loopmoe>() == verdict{yes, yes, no});

static_assert(looped_percent<prior::loopie> == 100.0 && prior::loopie::spans.size() == 24);
static_assert(judge<prior::loopie_reference, prior::loopie>() == verdict{no, no, no});

static_assert(looped_percent<prior::smelt_200m> == 50.0);
static_assert(judge<prior::smelt_200m_reference, prior::smelt_200m>() == verdict{yes, yes, yes});

// Named in the text beside the table. Its authors' claims where they make one: MoEUT equal
// parameters, DREAMER all three; one layer shared by all depths: FLOPs and cache, not parameters.

static_assert(layers<prior::universal_transformer> == 1);
static_assert(judge<prior::universal_transformer_reference, prior::universal_transformer>() ==
              verdict{yes, no, yes});

static_assert(layers<prior::albert> == 1);
static_assert(judge<prior::albert_reference, prior::albert>() == verdict{yes, no, yes});
static_assert(judge<prior::albert_reference, prior::albert, full_mask<512>>() ==
              verdict{yes, no, yes});

static_assert(layers<prior::dreamer> == 1 && executed_layers<prior::dreamer> == 16);
static_assert(judge<prior::dreamer_reference, prior::dreamer>() == verdict{yes, yes, yes});

static_assert(layers<prior::moeut> == 2 && executed_layers<prior::moeut> == 18);
static_assert(judge<prior::moeut_reference, prior::moeut>() == verdict{no, yes, no});

// Published sizes, in 1e9 and without embedding: Huginn has 1.5 outside its core and 1.5 in it;
// Ouro 1.4 with its 49152 tokens (two matrices of 2048), 4 times the products of its reference.
static_assert(within(parameters_billion<prior::huginn>, 3.0, 0.06));
static_assert(rounds_to(parameters_billion<language_model<prior::ouro, vocabulary<49152>>>, 1.4,
                        1));
static_assert(flops_per_token<prior::ouro, documents> ==
              4 * flops_per_token<prior::ouro_reference, documents>);
static_assert(within(parameters_billion<prior::albert>, .235, 0.2));
static_assert(within(parameters_billion<prior::loopmoe>, 3.0, 0.06));
static_assert(within(parameters_billion<prior::moeut>, .244, 0.15));

// The same bank of experts with 256 wide experts would match all but FLOPs, and only because of its
// router: a count that leaves routers out would call it matched.
struct wide_dreamer
    : transformer<hidden<1024>, gqa<8, 2, 128>, moe<562, 8, 256>, stack<looped<1, 16>>> {};
static_assert(judge<prior::dreamer_reference, wide_dreamer>() == verdict{no, yes, yes});
static_assert(
    within(static_cast<double>(flops_per_token<wide_dreamer, documents, convention::router_out>),
           static_cast<double>(
               flops_per_token<prior::dreamer_reference, documents, convention::router_out>),
           0.04));

}  // namespace
