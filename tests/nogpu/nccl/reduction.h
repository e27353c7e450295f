// SPDX-License-Identifier: Apache-2.0
//
// Element-wise reductions of NCCL's types.
#pragma once
#include <nccl.h>
#include <stddef.h>

size_t element_bytes(ncclDataType_t);  // 0: unknown type
// out = op over ranks of in[rank * stride_bytes ...], in rank order; 16-bit floats are summed in
// float and rounded once.
void reduce_ranks(void* out, const void* in, size_t count, size_t stride_bytes, int ranks,
                  ncclDataType_t, ncclRedOp_t);
