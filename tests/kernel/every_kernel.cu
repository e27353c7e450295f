// SPDX-License-Identifier: Apache-2.0
//
// Every kernel that training instantiates, in both precisions, and nothing that runs: compiled for
// real architectures to see registers, shared memory and spills, and to PTX to see instructions.
#include "smelt/cuda.hpp"

namespace smelt {

// A looped MoE with shared expert, norms, tied head and dense layers uses them all. Head sizes pick
// the attention kernel at run time, so one model has those of every size.
using every_op =
    language_model<transformer<hidden<64>, gqa<4, 2, 32>, moe<8, 2, 32, shared<32>>,
                               stack<plain<1, dense<64>>, looped<1, 2>>, qk_norm::per_head>,
                   vocabulary<256>, tied>;

template class trainer<every_op, cuda<float>>;
template class trainer<every_op, cuda<bf16>>;

// Balancing without a loss, and over ranks.
template void count_experts(const cuda<float>&, const std::int32_t*, std::int64_t, std::int64_t,
                            std::int64_t, std::int64_t*);
template void update_router_bias(const cuda<float>&, const std::int64_t*, std::int64_t, double,
                                 const float*, float*);

}  // namespace smelt
