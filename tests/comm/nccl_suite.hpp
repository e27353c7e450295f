// SPDX-License-Identifier: Apache-2.0
//
// What nccl_main.cpp, which the host's compiler takes, calls of nccl.cu, which nvcc takes.
#pragma once

#include <functional>
#include <string>

#include "smelt/mpi.hpp"

namespace smelt {
class nccl;
}

namespace smelt::test {

/// The suite's engine of all ranks.
nccl& nccl_world();

/// Runs the suite with an engine of all ranks of the launcher.
int with_nccl(mpi& launcher, const std::function<int()>& suite);

/// A program without MPI of its own in which the last rank goes wrong.
int nccl_fault(const std::string& what);

}  // namespace smelt::test
