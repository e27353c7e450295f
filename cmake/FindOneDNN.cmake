# SPDX-License-Identifier: Apache-2.0
#
# Finds oneDNN and defines OneDNN::OneDNN; sets OneDNN_FOUND, OneDNN_VERSION, OneDNN_LIBRARY.
#
# Why not the config file that Debian's libdnnl-dev brings: it insists on the headers of OpenCL,
# which that package does not pull in and which products on the CPU never use.
find_path(OneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(OneDNN_LIBRARY dnnl)
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)

if(OneDNN_INCLUDE_DIR AND EXISTS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
  file(READ "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" onednn_header)
  set(OneDNN_VERSION "")
  foreach(part MAJOR MINOR PATCH)
    string(REGEX MATCH "DNNL_VERSION_${part}[ \t]+([0-9]+)" onednn_match "${onednn_header}")
    list(APPEND OneDNN_VERSION "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN OneDNN_VERSION "." OneDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  OneDNN
  REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
  VERSION_VAR OneDNN_VERSION
  REASON_FAILURE_MESSAGE "On Debian: apt-get install libdnnl-dev")

if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(OneDNN::OneDNN PROPERTIES IMPORTED_LOCATION "${OneDNN_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}")
endif()
