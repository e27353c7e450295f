// SPDX-License-Identifier: Apache-2.0
//
// smelt on CUDA: the types of smelt.hpp, and what runs them with the policy cuda{}.
//
// For files that nvcc compiles; the CMake target smelt::cuda brings what it links. The host's
// policies are here too, in a namespace of their own, so one program may run both; float products
// on the host need smelt::host beside it. A file that writes `using namespace smelt` says
// smelt::cuda, since the toolkit has a namespace of that name.
#pragma once

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/exec/cuda/graph.cuh"
#include "smelt/exec/cuda/matmul.cuh"
#include "smelt/exec/cuda/policy.cuh"
#include "smelt/host.hpp"
#include "smelt/kernel/adamw.cuh"
#include "smelt/kernel/attention.cuh"
#include "smelt/kernel/balance.cuh"
#include "smelt/kernel/dense_ffn.cuh"
#include "smelt/kernel/dispatch.cuh"
#include "smelt/kernel/embed.cuh"
#include "smelt/kernel/expert_ffn.cuh"
#include "smelt/kernel/loss.cuh"
#include "smelt/kernel/residual.cuh"
#include "smelt/kernel/rms_norm.cuh"
#include "smelt/kernel/rope.cuh"
#include "smelt/kernel/route.cuh"
#include "smelt/kernel/router_bias.cuh"
#include "smelt/model/weights.cuh"
#include "smelt/train/step_memory.cuh"
