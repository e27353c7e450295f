# SPDX-License-Identifier: Apache-2.0
#
# smelt::nccl: several ranks with a CUDA device each by NCCL, where smelt::cuda is and NCCL is found.
#
# 2.18 is the first version with ncclCommSplit.
option(SMELT_NCCL "Use NCCL where CUDA and it are found" ON)
set(SMELT_HAS_NCCL FALSE)
if(SMELT_NCCL AND SMELT_HAS_CUDA)
  find_package(Nccl 2.18 QUIET)
  find_package(Threads QUIET)
  if(Nccl_FOUND AND Threads_FOUND)
    set(SMELT_HAS_NCCL TRUE)
    add_library(smelt_nccl INTERFACE)
    add_library(smelt::nccl ALIAS smelt_nccl)
    set_target_properties(smelt_nccl PROPERTIES EXPORT_NAME nccl)
    target_link_libraries(smelt_nccl INTERFACE smelt::cuda Nccl::Nccl Threads::Threads)
    message(STATUS "smelt: several ranks by NCCL ${Nccl_VERSION} (${Nccl_LIBRARY})")
  else()
    message(STATUS "smelt: no NCCL found, so no smelt::nccl (Debian: apt-get install libnccl-dev)")
  endif()
endif()
