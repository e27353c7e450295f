// SPDX-License-Identifier: Apache-2.0
//
// The suite of RMSNorm on CUDA.
#include "op/rms_norm.hpp"

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/kernel/rms_norm.cuh"

namespace smelt::test {

TEST_CASE_TEMPLATE_INVOKE(rms_norm_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_modes, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_in_place, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_strides, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(rms_norm_empty, cuda<>);

}  // namespace smelt::test
