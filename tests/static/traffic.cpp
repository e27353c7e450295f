// SPDX-License-Identifier: Apache-2.0
//
// Traffic of a training step against numbers worked out by hand. tests/budget/traffic.cpp plays the
// same exchanges through and counts.
#include <smelt/budget/traffic.hpp>

namespace {

using namespace smelt;

// One layer: attention 4 * 16 * 16 = 1024, gains 32, router 16 * 8 = 128, experts 8 * 3 * 16 * 4 =
// 1536. Replicated: 1184.
struct one_layer : transformer<hidden<16>, mha<2, 8>, moe<8, 2, 4>, stack<plain<1>>> {};
static_assert(parameters<one_layer> == 2720);

// A single rank sends nothing, whatever the convention.
static_assert(traffic_per_step<one_layer, rank_grid<1>>(1000) == traffic_split{});
static_assert(traffic_per_step<one_layer, rank_grid<1>, convention::sharded_optimizer,
                               convention::worst_routing>(1000) == traffic_split{});

// Expert parallelism over 4 ranks, 100 tokens each: 200 copies, 3/4 of them leave, 16 activations
// of 2 bytes: 150 * 32 = 4800 bytes, four times. Gradients of the replicated 1184 over 4 ranks:
// twice 3 * 296 of 4 bytes = 7104. Experts live once: nothing to reduce.
static_assert(traffic_per_step<one_layer, rank_grid<4>>(100) ==
              traffic_split{4800, 4800, 4800, 4800, 7104, 0});
static_assert(traffic_per_step<one_layer, rank_grid<4>>(100).all_to_all() == 19'200);
static_assert(traffic_per_step<one_layer, rank_grid<4>>(100).total() == 26'304);
static_assert(traffic_per_step<one_layer, rank_grid<4>, convention::per_rank,
                               convention::spread_routing, convention::replicated_optimizer>(100) ==
              traffic_per_step<one_layer, rank_grid<4>>(100));

// Data parallelism over 4 ranks: no all-to-all, all 2720 gradients: twice 3 * 680 of 4 bytes.
static_assert(traffic_per_step<one_layer, rank_grid<1, 4>>(100) ==
              traffic_split{0, 0, 0, 0, 16'320, 0});

// Both, 2 expert ranks in each of 2 replicas: half of 200 copies leaves (3200 bytes); 1184 over 4
// ranks (2 * 3 * 296) and the 768 of a rank's 4 experts over 2 (2 * 1 * 384), 4 bytes each.
static_assert(traffic_per_step<one_layer, rank_grid<2, 2>>(100) ==
              traffic_split{3200, 3200, 3200, 3200, 4 * (1776 + 768), 0});

// Sharded optimizer: half the ring for gradients (4 bytes), half for weights (2 bytes). With
// weights as wide as gradients the sum is that of the all-reduce.
static_assert(traffic_per_step<one_layer, rank_grid<1, 4>, convention::sharded_optimizer>(100) ==
              traffic_split{0, 0, 0, 0, 8160, 4080});
static_assert(traffic_per_step<one_layer, rank_grid<1, 4>, convention::sharded_optimizer,
                               wire_format<storage::bf16, storage::float32, storage::float32>>(100)
                  .total() == traffic_per_step<one_layer, rank_grid<1, 4>>(100).total());

// Every copy leaves: 200 * 32 bytes. All ranks: four times one rank's.
static_assert(traffic_per_step<one_layer, rank_grid<4>, convention::worst_routing>(100)
                  .dispatch_forward == 6400);
static_assert(traffic_per_step<one_layer, rank_grid<4>, convention::all_ranks>(100) ==
              traffic_per_step<one_layer, rank_grid<4>>(100).times(4));

// Wider activations on the wire, in either place among the options.
static_assert(traffic_per_step<one_layer, rank_grid<4>, wire_format<storage::float32>,
                               convention::all_ranks>(100)
                  .combine_backward == 4 * 9600);
static_assert(traffic_per_step<one_layer, rank_grid<4>, convention::all_ranks,
                               wire_format<storage::float32>>(100)
                  .combine_backward == 4 * 9600);

// Rounding up: 3 tokens are 6 copies, 4.5 of which leave 4 ranks: 5. 2720 parameters over 3 ranks:
// a shard of 907, twice 2 of them. 8 experts on 3 ranks: the fullest has 3.
static_assert(traffic_per_step<one_layer, rank_grid<4>>(3).dispatch_forward == 5 * 32);
static_assert(traffic_per_step<one_layer, rank_grid<1, 3>>(3).gradients == 4 * 2 * 2 * 907);
static_assert(traffic_per_step<one_layer, rank_grid<3, 2>>(3).gradients ==
              4 * (2 * 5 * 198 + 2 * 1 * (3 * 192 / 2)));

// Looped: each visit sends activations, the weights' gradient goes once.
struct one_looped : transformer<hidden<16>, mha<2, 8>, moe<8, 2, 4>, stack<looped<1, 3>>> {};
static_assert(traffic_per_step<one_looped, rank_grid<4>>(100) ==
              traffic_split{3 * 4800, 3 * 4800, 3 * 4800, 3 * 4800, 7104, 0});

// Dense layers and shared experts send no activations; a shared expert is replicated (3 * 16 * 8 =
// 384 more, so 2 * 3 * 392 of 4 bytes); the dense layer's ffn is replicated too.
struct with_shared : transformer<hidden<16>, mha<2, 8>, moe<8, 2, 4, shared<8>>, stack<plain<1>>> {
};
static_assert(traffic_per_step<with_shared, rank_grid<4>>(100) ==
              traffic_split{4800, 4800, 4800, 4800, 4 * 2 * 3 * 392, 0});
struct with_dense
    : transformer<hidden<16>, mha<2, 8>, moe<8, 2, 4>, stack<plain<2, dense<20>>, plain<1>>> {};
static_assert(parameters<with_dense> == 2720 + 2 * (1024 + 32 + 3 * 16 * 20));
static_assert(traffic_per_step<with_dense, rank_grid<4>>(100) ==
              traffic_split{4800, 4800, 4800, 4800, 4 * 2 * 3 * (1184 + 4032) / 4, 0});

// Tied: one matrix of 16 * 100, one gradient; untied two. Both add the final norm of 16.
static_assert(traffic_per_step<language_model<one_layer, vocabulary<100>, tied>, rank_grid<1, 2>>(1)
                  .gradients == 4 * 2 * (2720 + 1600 + 16) / 2);
static_assert(
    traffic_per_step<language_model<one_layer, vocabulary<100>, untied>, rank_grid<1, 2>>(1)
        .gradients == 4 * 2 * (2720 + 3200 + 16) / 2);

// A pair of one budget does not have one all-to-all: per token and executed layer a copy is as wide
// as the hidden size. Baseline 12 * 1280, SMELT 18 * 1056: 24 % more. 4096 tokens on each of 8
// ranks.
struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};
struct smelt_twin : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                                stack<plain<3>, looped<6, 2>, plain<3>>> {};
static_assert(traffic_per_step<baseline, rank_grid<8>>(4096).all_to_all() ==
              std::int64_t{4} * 12 * 4096 * 7 * 1280 * 2);
static_assert(traffic_per_step<smelt_twin, rank_grid<8>>(4096).all_to_all() ==
              std::int64_t{4} * 18 * 4096 * 7 * 1056 * 2);

// Past 32 bit: 30.5e9 gradients of 4 bytes over 1024 ranks.
using qwen3_30b = language_model<transformer<hidden<2048>, gqa<32, 4, 128>, moe<128, 8, 768>,
                                             stack<plain<48>>, qk_norm::per_head>,
                                 vocabulary<151936>>;
static_assert(traffic_per_step<qwen3_30b, rank_grid<1, 1024>>(1).gradients ==
              std::int64_t{4} * 2 * 1023 * 29'816'526);

}  // namespace
