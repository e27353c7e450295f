// SPDX-License-Identifier: Apache-2.0
//
// How a program of several ranks with NCCL begins and ends, with and without MPI.
//
//   with MPI      run_ranks(argc, argv, [](smelt::mpi& launcher) {
//                   smelt::nccl ranks(launcher);  // NCCL's id goes by MPI
//                   ...; return 0; });
//   without       run_nccl_ranks([](smelt::nccl& ranks) { ...; return 0; });
//
// Without MPI the launcher's variables say who a process is (comm/nccl_launch.hpp) and the ranks
// meet at SMELT_NCCL_RENDEZVOUS (comm/nccl_rendezvous.hpp); without either it is one rank. A rank
// that goes wrong prints its error and ends; the launcher, or the timeout, ends the others. An
// agreed_error reaches all ranks alike: rank 0 prints it and all of them end in peace with 1.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "smelt/comm/nccl.cuh"

namespace smelt {

/// Runs body(ranks) with all ranks of the job, which meet at `address`, or where the environment
/// says.
/// @returns what body returns, or 1 after an agreed_error. After any other error, printed to stderr
/// as one line, the process ends at once with status 1.
template <class Body>
int run_nccl_ranks(Body&& body, const std::string& address = {}) {
  std::int64_t rank = 0;
  try {
    const nccl_rendezvous where = nccl_rendezvous::of_launcher(address);
    rank = where.process.rank;
    nccl ranks(where);
    try {
      return body(ranks);
    } catch (const agreed_error& e) {
      if (rank == 0) std::fprintf(stderr, "smelt: %s\n", e.what());
      // A launcher ends all ranks when the first has failed: nobody goes before the line is out.
      ranks.barrier();
      return 1;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "smelt: rank %lld: %s\n", static_cast<long long>(rank), e.what());
    std::fflush(nullptr);
    // Ends of libraries may wait for ranks that will not come.
    std::_Exit(1);
  }
}

}  // namespace smelt
