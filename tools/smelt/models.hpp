// SPDX-License-Identifier: Apache-2.0
//
// The models of the program smelt: Baselines, each with the looped twin that the compiler finds.
//
// To train your own, write a header like this one and configure with -DSMELT_MODELS=<its path>.
// Whatever the models are, this file compiles only where a pair costs the same.
#pragma once

#include <cstdint>
#include <string_view>

#include "model_list.hpp"
#include "smelt/match/search.hpp"
#include "smelt/smelt.hpp"

namespace smelt_models {

/// One document per sequence of the default context: what the pairs are matched for.
using mask = smelt::causal<256>;

// The paper's recipe, the middle half of the layers twice, in multiples that small models can keep.
using recipe = smelt::recipe::looped_middle<
    smelt::recipe::hidden_multiple<16>, smelt::recipe::head_size_multiple<16>,
    smelt::recipe::expert_width_multiple<8>, smelt::recipe::experts_multiple<2>>;

// Minutes on two cores.
struct baseline_body : smelt::transformer<smelt::hidden<192>, smelt::gqa<4, 1, 48>,
                                          smelt::moe<16, 2, 128>, smelt::stack<smelt::plain<4>>> {};
struct smelt_body : smelt::matched<baseline_body, recipe, smelt::tolerance<>, mask> {};

// Seconds: for tests, and to try a command out.
struct tiny_baseline_body
    : smelt::transformer<smelt::hidden<48>, smelt::gqa<4, 1, 12>, smelt::moe<8, 2, 32>,
                         smelt::stack<smelt::plain<4>>> {};
using tiny_recipe = smelt::recipe::looped_middle<
    smelt::recipe::hidden_multiple<4>, smelt::recipe::head_size_multiple<2>,
    smelt::recipe::expert_width_multiple<4>, smelt::recipe::experts_multiple<1>>;
struct tiny_smelt_body : smelt::matched<tiny_baseline_body, tiny_recipe, smelt::tolerance<>, mask> {
};

// 4 % of training FLOPs, 1 % of parameters, 4 % of KV cache; an error would print the figures.
static_assert(smelt::assert_matched<baseline_body, smelt_body, smelt::tolerance<>, mask>);
static_assert(smelt::assert_matched<tiny_baseline_body, tiny_smelt_body, smelt::tolerance<>, mask>);

/// A token per byte and one that ends a text: what smelt-tokens writes without a tokenizer.
template <class Body>
struct of_bytes : smelt::language_model<Body, smelt::vocabulary<257>, smelt::tied> {
  static constexpr std::int64_t end_of_text = 256;
};
/// GPT-2's vocabulary: what the shards of llm.c hold.
template <class Body>
struct of_gpt2 : smelt::language_model<Body, smelt::vocabulary<50'257>, smelt::tied> {
  static constexpr std::int64_t end_of_text = 50'256;
};

struct baseline : of_bytes<baseline_body> {
  static constexpr std::string_view name = "baseline";
  static constexpr std::string_view architecture = "baseline";
};
struct looped : of_bytes<smelt_body> {
  static constexpr std::string_view name = "smelt";
  static constexpr std::string_view architecture = "smelt";
};
struct baseline_gpt2 : of_gpt2<baseline_body> {
  static constexpr std::string_view name = "baseline-gpt2";
  static constexpr std::string_view architecture = "baseline";
};
struct looped_gpt2 : of_gpt2<smelt_body> {
  static constexpr std::string_view name = "smelt-gpt2";
  static constexpr std::string_view architecture = "smelt";
};
struct baseline_tiny : of_bytes<tiny_baseline_body> {
  static constexpr std::string_view name = "baseline-tiny";
  static constexpr std::string_view architecture = "baseline";
};
struct looped_tiny : of_bytes<tiny_smelt_body> {
  static constexpr std::string_view name = "smelt-tiny";
  static constexpr std::string_view architecture = "smelt";
};

// The heads cost the same per hidden unit; the bodies are what is compared.
static_assert(smelt::budget_matched<baseline::body, looped::body, smelt::tolerance<>, mask>);
static_assert(
    smelt::budget_matched<baseline_gpt2::body, looped_gpt2::body, smelt::tolerance<>, mask>);
static_assert(
    smelt::budget_matched<baseline_tiny::body, looped_tiny::body, smelt::tolerance<>, mask>);

using all = smelt_tool::model_list<baseline, looped, baseline_gpt2, looped_gpt2, baseline_tiny,
                                   looped_tiny>;

}  // namespace smelt_models
