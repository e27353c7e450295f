# SPDX-License-Identifier: Apache-2.0
#
# Finds NCCL (collectives between CUDA devices) beside the CUDA toolkit or as a package of the system
# and defines Nccl::Nccl; sets Nccl_FOUND, Nccl_VERSION and Nccl_LIBRARY. NCCL has no config file of
# its own. find_package(CUDAToolkit) comes before.
find_path(Nccl_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(Nccl_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib64)
mark_as_advanced(Nccl_INCLUDE_DIR Nccl_LIBRARY)

set(Nccl_VERSION "")
if(Nccl_INCLUDE_DIR)
  file(STRINGS "${Nccl_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" nccl_lines "${nccl_lines}")
  list(JOIN nccl_lines "." Nccl_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Nccl
  REQUIRED_VARS Nccl_LIBRARY Nccl_INCLUDE_DIR
  VERSION_VAR Nccl_VERSION
  REASON_FAILURE_MESSAGE "It comes with the CUDA toolkit, or as the package libnccl-dev")

if(Nccl_FOUND AND NOT TARGET Nccl::Nccl)
  add_library(Nccl::Nccl UNKNOWN IMPORTED)
  set_target_properties(Nccl::Nccl PROPERTIES IMPORTED_LOCATION "${Nccl_LIBRARY}"
                                              INTERFACE_INCLUDE_DIRECTORIES "${Nccl_INCLUDE_DIR}")
endif()
