// SPDX-License-Identifier: Apache-2.0
//
// How a program of several ranks begins and ends: run_ranks, launched by mpirun, srun or alone.
//
//   int main(int argc, char** argv) {
//     return smelt::run_ranks(argc, argv, [&](smelt::mpi& ranks) { ...; return 0; });
//   }
//
// An error on one rank must not leave the others in a collective that it will never reach: it is
// printed with the rank and ends the job. An agreed_error reaches all ranks alike, so rank 0 prints
// it and all of them end in peace with 1.
#pragma once

#include <mpi.h>

#include <cstdio>
#include <exception>

#include "smelt/comm/mpi.hpp"

namespace smelt {

/// Runs body(ranks) with all ranks of the job; without mpirun there is one. Initialises MPI unless
/// that was done, and then also finalises it.
/// @returns what body returns, or 1 where it ended by an exception, printed to stderr as one line.
template <class Body>
int run_ranks(int& argc, char**& argv, Body&& body) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0) {
    // One thread calls MPI, the threads of the policies only compute.
    int provided = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_FUNNELED) {
      std::fprintf(stderr,
                   "smelt: MPI_Init_thread: expected MPI_THREAD_FUNNELED, found less; use "
                   "an MPI that was built with threads\n");
      return 1;
    }
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int status = 1;
  try {
    mpi ranks;
    status = body(ranks);
  } catch (const agreed_error& e) {
    if (rank == 0) std::fprintf(stderr, "smelt: %s\n", e.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "smelt: rank %d: %s\n", rank, e.what());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (initialised == 0) MPI_Finalize();
  return status;
}

}  // namespace smelt
