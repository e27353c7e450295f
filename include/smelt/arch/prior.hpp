// SPDX-License-Identifier: Apache-2.0
//
// Looped designs before SMELT as types, each beside the unlooped model it is compared with.
//
//   prior::ouro, prior::ouro_reference    the looped body and its reference, and so on
//
// These are shapes for accounting, not reproductions. A type holds layers, widths, heads, experts
// and visits; it does not hold what a work adds beside them (adapters, injection of the input, exit
// gates, extra norms, experts in attention, attention over depth), nor a recurrence drawn at
// random, for which the mean stands. Feed-forwards are SwiGLU throughout: where a work has two
// matrices instead of three the width is two thirds of the published one, which keeps products and
// weights.
//
// Each comment says what is published and what is chosen here. Whether FLOPs, parameters and KV
// cache match follows from the types: tests/static/prior.cpp asserts it against the paper's
// Table 1. Source: paper section 9.
#pragma once

#include "smelt/arch/scales.hpp"
#include "smelt/arch/transformer.hpp"

namespace smelt::prior {

/// Huginn-3.5B. Published: hidden 5280, 55 heads of 96, SwiGLU 17920, 2 layers before and 2 after a
/// core of 4, mean recurrence 32. Reference (chosen): the same weights read once.
struct huginn : transformer<hidden<5280>, mha<55, 96>, dense<17920>,
                            stack<plain<2>, looped<4, 32>, plain<2>>> {};
struct huginn_reference : transformer<hidden<5280>, mha<55, 96>, dense<17920>, stack<plain<8>>> {};

/// Ouro-1.4B. Published: 24 layers, hidden 2048, multi-head attention, the full stack 4 times.
/// Chosen: 16 heads of 128 and SwiGLU 5632, which give 1.4e9 with 49152 tokens. Reference (chosen):
/// the same weights read once.
struct ouro : transformer<hidden<2048>, mha<16, 128>, dense<5632>, stack<looped<24, 4>>> {};
struct ouro_reference : transformer<hidden<2048>, mha<16, 128>, dense<5632>, stack<plain<24>>> {};

/// Saunshi et al. Published: 24 executed layers at the 1e9 scale, unlooped models of 12 and 24
/// layers beside them, looping in the middle. Chosen: hidden 2048, 4 layers 4 times between 4
/// and 4. Reference (chosen): 16 layers, between the published 12 and 24, where a perplexity
/// between theirs lies: compared at equal perplexity, neither FLOPs nor parameters nor cache are
/// equal.
struct saunshi : transformer<hidden<2048>, mha<16, 128>, dense<5464>,
                             stack<plain<4>, looped<4, 4>, plain<4>>> {};
struct saunshi_reference : transformer<hidden<2048>, mha<16, 128>, dense<5464>, stack<plain<16>>> {
};

/// Schwethelm et al. Published: executed depth held fixed while visits replace layers. Shares and
/// visits are those of the paper's table (67/50/33 % for 2/3/4 visits). Chosen: widths, and the
/// depth of each reference, which a third of the layers visited four times cannot bring to 20.
struct schwethelm_r2 : transformer<hidden<1280>, mha<10, 128>, dense<3416>,
                                   stack<plain<2>, looped<8, 2>, plain<2>>> {};
struct schwethelm_r3 : transformer<hidden<1280>, mha<10, 128>, dense<3416>,
                                   stack<plain<2>, looped<5, 3>, plain<3>>> {};
struct schwethelm_r4 : transformer<hidden<1280>, mha<10, 128>, dense<3416>,
                                   stack<plain<4>, looped<4, 4>, plain<4>>> {};
struct schwethelm_r2_reference
    : transformer<hidden<1280>, mha<10, 128>, dense<3416>, stack<plain<20>>> {};
struct schwethelm_r3_reference
    : transformer<hidden<1280>, mha<10, 128>, dense<3416>, stack<plain<20>>> {};
struct schwethelm_r4_reference
    : transformer<hidden<1280>, mha<10, 128>, dense<3416>, stack<plain<24>>> {};

/// Parcae-1.3B (Prairie et al.). Published: 8 layers, 8 layers visited 8 times, 8 layers, hidden
/// 1536. Chosen: heads and SwiGLU width. Reference (chosen): the same weights read once.
struct parcae : transformer<hidden<1536>, mha<12, 128>, dense<4096>,
                            stack<plain<8>, looped<8, 8>, plain<8>>> {};
struct parcae_reference : transformer<hidden<1536>, mha<12, 128>, dense<4096>, stack<plain<24>>> {};

/// LoopMoE at 3e9. Published: the scale, equal parameters and FLOPs, the middle third looped.
/// Chosen: everything else. A narrower body pays for the 6 visits more; its cache stays larger.
struct loopmoe : transformer<hidden<1344>, gqa<12, 4, 112>, moe<88, 8, 432>,
                             stack<plain<6>, looped<6, 2>, plain<6>>> {};
struct loopmoe_reference
    : transformer<hidden<1536>, gqa<12, 4, 128>, moe<64, 8, 512>, stack<plain<18>>> {};

/// Loopie (Gao et al.). Published: MoE, every layer looped on its own, compared at equal wall
/// clock. Chosen: all sizes; the reference is as deep as fits the same time if a second visit costs
/// half a layer, because its weights are already at hand.
struct loopie : transformer<hidden<2048>, gqa<16, 4, 128>, moe<64, 8, 768>,
                            stack<repeated<24, looped<1, 2>>>> {};
struct loopie_reference
    : transformer<hidden<2048>, gqa<16, 4, 128>, moe<64, 8, 768>, stack<plain<36>>> {};

/// SMELT: the paper's worked pair.
struct smelt_200m : paper::smelt_200m_s95 {};
struct smelt_200m_reference : paper::baseline_200m_s95 {};

/// Universal Transformer, base. Published: hidden 1024, 16 heads, filter 4096 (two matrices), one
/// layer, 6 steps, encoder and decoder. Chosen: a decoder alone. Reference: 6 layers.
struct universal_transformer
    : transformer<hidden<1024>, mha<16, 64>, dense<2728>, stack<looped<1, 6>>> {};
struct universal_transformer_reference
    : transformer<hidden<1024>, mha<16, 64>, dense<2728>, stack<plain<6>>> {};

/// ALBERT-xxlarge. Published: hidden 4096, 64 heads, feed-forward 16384 (two matrices), one layer,
/// 12 executed; an encoder, so ask for its FLOPs under full_mask. Reference: 12 layers.
struct albert : transformer<hidden<4096>, mha<64, 64>, dense<10920>, stack<looped<1, 12>>> {};
struct albert_reference : transformer<hidden<4096>, mha<64, 64>, dense<10920>, stack<plain<12>>> {};

/// DREAMER. Published: one MoE layer, 16 to 32 visits, compared at equal FLOPs, parameters and
/// memory. Chosen: all sizes, at 16 visits. 600 experts make a router that is 7 % of the layer's
/// products; experts of 240 instead of 256 pay for it.
struct dreamer : transformer<hidden<1024>, gqa<8, 2, 128>, moe<600, 8, 240>, stack<looped<1, 16>>> {
};
struct dreamer_reference
    : transformer<hidden<1024>, gqa<8, 2, 128>, moe<32, 8, 256>, stack<plain<16>>> {};

/// MoEUT-244M. Published: hidden 1024, 18 executed layers from a group of 2, 4 heads of 128, 387
/// experts of 128 (two matrices), top 16; parameters equal to those of a dense model of 18 layers.
/// Chosen: SwiGLU 88 for the experts, the dense width that makes parameters equal.
struct moeut : transformer<hidden<1024>, mha<4, 128>, moe<387, 16, 88>, stack<looped<2, 9>>> {};
struct moeut_reference : transformer<hidden<1024>, mha<16, 64>, dense<2504>, stack<plain<18>>> {};

}  // namespace smelt::prior
