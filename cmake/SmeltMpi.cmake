# SPDX-License-Identifier: Apache-2.0
#
# smelt::mpi: several ranks by MPI, where an MPI library of version 3 is found.
#
# A program that also computes on the host links smelt::host beside it.
option(SMELT_MPI "Use MPI where it is found" ON)
set(SMELT_HAS_MPI FALSE)
if(SMELT_MPI)
  # The C functions alone: MPI's own C++ bindings are gone since MPI 3.
  set(MPI_CXX_SKIP_MPICXX TRUE)
  find_package(MPI 3 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(SMELT_HAS_MPI TRUE)
    add_library(smelt_mpi INTERFACE)
    add_library(smelt::mpi ALIAS smelt_mpi)
    set_target_properties(smelt_mpi PROPERTIES EXPORT_NAME mpi)
    target_link_libraries(smelt_mpi INTERFACE smelt::smelt MPI::MPI_CXX)
    message(STATUS "smelt: several ranks by MPI ${MPI_CXX_VERSION} (${MPI_CXX_HEADER_DIR})")
  else()
    message(STATUS "smelt: no MPI found, so no smelt::mpi (Debian: apt-get install libopenmpi-dev)")
  endif()
endif()
