# SPDX-License-Identifier: Apache-2.0
#
# Finds OpenBLAS with its C interface and defines OpenBLAS::OpenBLAS; sets OpenBLAS_FOUND and
# OpenBLAS_LIBRARY.
#
# Why not its own config file: Debian's sets variables only, no target. And the search begins in
# the folders that hold OpenBLAS alone, as the plain libblas.so is whatever the system's
# alternatives point at, without openblas_set_num_threads.
set(openblas_folders openblas-openmp openblas-pthread openblas-serial openblas)
find_path(OpenBLAS_INCLUDE_DIR openblas_config.h
          PATH_SUFFIXES x86_64-linux-gnu ${openblas_folders})
find_library(OpenBLAS_LIBRARY openblas PATH_SUFFIXES ${openblas_folders})
mark_as_advanced(OpenBLAS_INCLUDE_DIR OpenBLAS_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  OpenBLAS
  REQUIRED_VARS OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "On Debian: apt-get install libopenblas-dev")

if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::OpenBLAS)
  add_library(OpenBLAS::OpenBLAS UNKNOWN IMPORTED)
  set_target_properties(
    OpenBLAS::OpenBLAS PROPERTIES IMPORTED_LOCATION "${OpenBLAS_LIBRARY}"
                                  INTERFACE_INCLUDE_DIRECTORIES "${OpenBLAS_INCLUDE_DIR}")
endif()
