// SPDX-License-Identifier: Apache-2.0
//
// smelt on several ranks by NCCL: the engine, the program around it, and what is built on any
// engine: grids of ranks, sums of gradients, sharded optimizer state.
//
// For files that nvcc compiles, beside smelt/cuda.hpp; the CMake target smelt::nccl brings what it
// links. MPI is not needed; where it starts the ranks, smelt/mpi.hpp and smelt::mpi come with it.
#pragma once

#include "smelt/comm/alone.hpp"
#include "smelt/comm/collectives.hpp"
#include "smelt/comm/data_parallel.hpp"
#include "smelt/comm/expert_parallel.hpp"
#include "smelt/comm/nccl.cuh"
#include "smelt/comm/nccl_program.hpp"
#include "smelt/comm/nccl_rendezvous.hpp"
#include "smelt/comm/rank_grid.hpp"
#include "smelt/comm/sharded_optimizer.hpp"
