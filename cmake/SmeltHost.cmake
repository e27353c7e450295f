# SPDX-License-Identifier: Apache-2.0
#
# smelt::host: running on the CPU. SMELT_MATMUL chooses the library of matrix products:
#   auto      oneDNN where it is found, else OpenBLAS, else an error that names the packages
#   onednn    oneDNN: float32, and bf16 where the CPU has AMX
#   openblas  OpenBLAS: float32 only
#   none      no smelt::host at all, for a project that only wants the types
# The choice reaches the sources as SMELT_MATMUL_ONEDNN=1 or SMELT_MATMUL_OPENBLAS=1.
set(SMELT_MATMUL "auto" CACHE STRING "Matrix products: auto, onednn, openblas, or none")
set_property(CACHE SMELT_MATMUL PROPERTY STRINGS auto onednn openblas none)

# The library in use: onednn, openblas or empty. The installed package is fixed on the same one.
set(SMELT_MATMUL_FOUND "")
if(SMELT_MATMUL STREQUAL "auto" OR SMELT_MATMUL STREQUAL "onednn")
  find_package(OneDNN QUIET)
  if(OneDNN_FOUND)
    set(SMELT_MATMUL_FOUND onednn)
  endif()
elseif(NOT SMELT_MATMUL MATCHES "^(openblas|none)$")
  message(FATAL_ERROR "SMELT_MATMUL is '${SMELT_MATMUL}'; expected auto, onednn, openblas or none")
endif()
if(SMELT_MATMUL STREQUAL "openblas" OR (SMELT_MATMUL STREQUAL "auto" AND NOT SMELT_MATMUL_FOUND))
  find_package(OpenBLAS QUIET MODULE)
  if(OpenBLAS_FOUND)
    set(SMELT_MATMUL_FOUND openblas)
  endif()
endif()

if(SMELT_MATMUL STREQUAL "none")
  message(STATUS "smelt: types only (SMELT_MATMUL is none); there is no smelt::host")
elseif(NOT SMELT_MATMUL_FOUND)
  string(CONCAT smelt_message
    "smelt: no library of matrix products found for SMELT_MATMUL=${SMELT_MATMUL}. "
    "On Debian: 'apt-get install libdnnl-dev' (oneDNN) or 'apt-get install libopenblas-dev' "
    "(OpenBLAS). With SMELT_MATMUL=none there are the types alone, smelt::smelt.")
  # A project that only adds smelt for its types is not made to install anything.
  if(PROJECT_IS_TOP_LEVEL OR NOT SMELT_MATMUL STREQUAL "auto")
    message(FATAL_ERROR "${smelt_message}")
  else()
    message(STATUS "${smelt_message} For now there is no smelt::host.")
  endif()
else()
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    message(FATAL_ERROR "smelt: ${CMAKE_CXX_COMPILER} has no OpenMP. With clang 14 on Debian: "
                        "'apt-get install libomp-14-dev'; g++ brings its own.")
  endif()
  add_library(smelt_host INTERFACE)
  add_library(smelt::host ALIAS smelt_host)
  set_target_properties(smelt_host PROPERTIES EXPORT_NAME host)
  # Files that nvcc compiles share inline functions with the others, and so their OpenMP.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(smelt_host INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fopenmp>")
  endif()
  if(SMELT_MATMUL_FOUND STREQUAL "onednn")
    target_link_libraries(smelt_host INTERFACE smelt::smelt OpenMP::OpenMP_CXX OneDNN::OneDNN)
    target_compile_definitions(smelt_host INTERFACE SMELT_MATMUL_ONEDNN=1)
    message(STATUS "smelt: matrix products by oneDNN ${OneDNN_VERSION} (${OneDNN_LIBRARY})")
  else()
    target_link_libraries(smelt_host INTERFACE smelt::smelt OpenMP::OpenMP_CXX OpenBLAS::OpenBLAS)
    target_compile_definitions(smelt_host INTERFACE SMELT_MATMUL_OPENBLAS=1)
    message(STATUS "smelt: matrix products by OpenBLAS (${OpenBLAS_LIBRARY})")
  endif()
endif()
