// SPDX-License-Identifier: Apache-2.0
//
// launch: one rank or as many as mpirun or srun started. Without a launcher MPI is not even
// initialised: a program alone must not depend on what it would find.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "ranks.hpp"
#include "smelt/error.hpp"

namespace smelt_tool {

/// A number out of the environment, or `otherwise`.
inline int environment_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// Whether a launcher of MPI started this process, and as which rank; before MPI is initialised.
inline int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(name) != nullptr) return environment_number(name, 0);
  return -1;
}
/// Ranks on this machine.
inline int local_ranks() {
  return environment_number("OMPI_COMM_WORLD_LOCAL_SIZE", environment_number("MPI_LOCALNRANKS", 1));
}

/// Runs body(ranks) -> exit code; an error is one line on stderr and the exit code 1.
template <class Body>
int launch(int& count, char**& words, Body&& body) {
#if defined(SMELT_TOOL_MPI)
  if (launched_rank() >= 0)
    return smelt::run_ranks(count, words, [&](smelt::mpi& world) {
      ranks all(world);
      return body(all);
    });
#else
  static_cast<void>(count);
  static_cast<void>(words);
#endif
  try {
#if !defined(SMELT_TOOL_MPI)
    if (environment_number("OMPI_COMM_WORLD_SIZE", environment_number("PMI_SIZE", 1)) > 1)
      throw smelt::error(
          "several ranks: expected a program that was built with MPI, found one "
          "without; install an MPI library and build again");
#endif
    ranks all;
    return body(all);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "smelt: %s\n", e.what());
    return 1;
  }
}

}  // namespace smelt_tool
