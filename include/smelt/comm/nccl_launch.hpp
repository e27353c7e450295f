// SPDX-License-Identifier: Apache-2.0
//
// Who this process is among those that a launcher started, by its environment alone.
//
//   launcher             rank                  ranks                  rank on this machine
//   Open MPI's mpirun    OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE   OMPI_COMM_WORLD_LOCAL_RANK
//   MPICH's mpiexec      PMI_RANK              PMI_SIZE               MPI_LOCALRANKID
//   torchrun, by hand    RANK                  WORLD_SIZE             LOCAL_RANK
//   Slurm's srun         SLURM_PROCID          SLURM_STEP_NUM_TASKS   SLURM_LOCALID
//
// The first line of which both rank and ranks are set counts; without any it is one process. An
// mpirun inside of a Slurm job sets both, and is right; the number of tasks is that of the step,
// since the script of a Slurm job is not one of its tasks.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "smelt/comm/timeout.hpp"
#include "smelt/error.hpp"

namespace smelt {

/// A process among those of its job.
struct launched_process {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  std::int64_t local_rank = 0;  // on its machine; where nobody says so, its rank
  /// A name that two jobs do not share, or nothing where the launcher gives none.
  std::string job;
};

namespace detail {

// A number of the environment from 0 to below `end`.
inline std::int64_t launched_number(const char* name, const char* text, std::int64_t end) {
  const std::string_view digits(text);
  std::int64_t value = -1;
  const auto [stop, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc{} || stop != digits.data() + digits.size() || value < 0 || value >= end)
    throw error(std::string(name) + ": expected a whole number from 0 to " +
                std::to_string(end - 1) + ", found '" + text + "'");
  return value;
}

/// Reads the table above from variable(name), which returns a text or null.
template <class Variable>
launched_process read_launched_process(Variable&& variable) {
  struct names {
    const char* rank;
    const char* ranks;
    const char* local_rank;
  };
  constexpr std::array<names, 4> launchers{
      {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
       {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
       {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}}};
  launched_process found;
  for (const names& by : launchers) {
    const char* rank = variable(by.rank);
    const char* ranks = variable(by.ranks);
    if (rank == nullptr || ranks == nullptr) continue;
    // NCCL and MPI count ranks in int.
    found.ranks = launched_number(by.ranks, ranks, std::numeric_limits<int>::max());
    found.rank = launched_number(by.rank, rank, found.ranks);
    const char* local_rank = variable(by.local_rank);
    found.local_rank = local_rank == nullptr
                           ? found.rank
                           : launched_number(by.local_rank, local_rank, found.ranks);
    break;
  }
  // Two steps of one Slurm job differ in the second name only.
  for (const char* name :
       {"SMELT_COMM_JOB", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"})
    if (const char* text = variable(name)) found.job += std::string(text) + "/";
  return found;
}

}  // namespace detail

/// This process, as its launcher has it.
/// @throws smelt::error where a variable is not a number or a rank is not below the ranks.
inline launched_process launched() {
  return detail::read_launched_process([](const char* name) { return std::getenv(name); });
}

}  // namespace smelt
