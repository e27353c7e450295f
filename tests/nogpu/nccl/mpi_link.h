// SPDX-License-Identifier: Apache-2.0
//
// MPI as the wire: start-up, point-to-point waits with a time limit.
#pragma once
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <string>
#include <vector>

namespace wire {
bool start(std::string* error);  // MPI_Init, once; false when this process is not one of several
int world_rank();                // also before start(): from the launcher's environment
int world_size();
// Waits for all requests; a partner that never answers ends the process after NOGPU_NCCL_TIMEOUT
// seconds.
void wait(std::vector<MPI_Request>&, const char* what);
int wait_bytes(MPI_Request&, const char* what);  // one receive: how many bytes arrived
[[noreturn]] void die(const std::string& text);
}  // namespace wire
