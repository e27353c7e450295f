// SPDX-License-Identifier: Apache-2.0
//
// The pair: a Baseline, and the looped twin that the compiler finds for it.
//
// To compare two architectures of your own, change the types here. Whatever they are, this file
// compiles only where they cost the same: that is what the comparison rests on.
#pragma once

#include <cstdint>

#include "smelt/match/search.hpp"
#include "smelt/smelt.hpp"

namespace pair {

/// Tokens that a sequence holds unless --context says otherwise. It enters the FLOPs of attention.
inline constexpr std::int64_t context = 256;
using mask = smelt::causal<context>;

// Micro sizes: the two train in about three minutes on two cores.
struct baseline_body : smelt::transformer<smelt::hidden<192>, smelt::gqa<4, 1, 48>,
                                          smelt::moe<16, 2, 128>, smelt::stack<smelt::plain<4>>> {};

// The paper's recipe: the middle half of the layers executed twice. The multiples are what the
// hardware likes: with 6 layers executed instead of 4, a head of 48 becomes one of 32 at the same
// KV cache.
using recipe = smelt::recipe::looped_middle<
    smelt::recipe::hidden_multiple<16>, smelt::recipe::head_size_multiple<16>,
    smelt::recipe::expert_width_multiple<8>, smelt::recipe::experts_multiple<2>>;
struct smelt_body : smelt::matched<baseline_body, recipe, smelt::tolerance<>, mask> {};

// 4 % of training FLOPs, 1 % of parameters, 4 % of KV cache; an error would print the figures.
static_assert(smelt::assert_matched<baseline_body, smelt_body, smelt::tolerance<>, mask>);
static_assert(smelt::budget_matched<baseline_body, smelt_body, smelt::tolerance<>, mask>);

/// A token per byte: any text, no tokenizer.
using byte_tokens = smelt::vocabulary<256>;
struct baseline_model : smelt::language_model<baseline_body, byte_tokens, smelt::tied> {};
struct smelt_model : smelt::language_model<smelt_body, byte_tokens, smelt::tied> {};

}  // namespace pair
