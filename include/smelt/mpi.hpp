// SPDX-License-Identifier: Apache-2.0
//
// smelt on several ranks by MPI: the engine, the program around it, and what is built on any
// engine: grids of ranks, sums of gradients, sharded optimizer state.
//
// Needs an MPI library of version 3; the CMake target smelt::mpi brings it.
#pragma once

#include "smelt/comm/alone.hpp"
#include "smelt/comm/collectives.hpp"
#include "smelt/comm/data_parallel.hpp"
#include "smelt/comm/expert_parallel.hpp"
#include "smelt/comm/mpi.hpp"
#include "smelt/comm/mpi_program.hpp"
#include "smelt/comm/rank_grid.hpp"
#include "smelt/comm/sharded_optimizer.hpp"
