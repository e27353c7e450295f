# SPDX-License-Identifier: Apache-2.0
#
# smelt::cuda: the types and the CUDA runtime and cuBLAS, for files that nvcc compiles.
#
#   SMELT_CUDA     auto (default): where nvcc is found; on: or the configuration fails; off
#   SMELT_HAS_CUDA is set where the target exists
#
# The host's float products need smelt::host beside it; nothing else of the host does.
set(SMELT_CUDA auto CACHE STRING "Whether to build for CUDA: auto, on or off")
set_property(CACHE SMELT_CUDA PROPERTY STRINGS auto on off)
string(TOLOWER "${SMELT_CUDA}" smelt_cuda_wanted)
set(SMELT_HAS_CUDA FALSE)
if(smelt_cuda_wanted STREQUAL "off")
  return()
endif()

find_program(SMELT_NVCC nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(SMELT_NVCC)
if(SMELT_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${SMELT_NVCC}")
endif()
if(PROJECT_IS_TOP_LEVEL)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  if(SMELT_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${SMELT_CCACHE}")
  endif()
  # nvcc takes g++ whatever compiles the rest; clang 14 is too old for its headers.
  if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  endif()
endif()
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER_LOADED)
  if(SMELT_NVCC)
    enable_language(CUDA)
  else()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
    endif()
  endif()
endif()
find_package(CUDAToolkit QUIET)
if(NOT CMAKE_CUDA_COMPILER_LOADED OR NOT CUDAToolkit_FOUND)
  if(smelt_cuda_wanted STREQUAL "on")
    message(FATAL_ERROR "smelt: SMELT_CUDA is on and no CUDA toolkit with nvcc was found; put nvcc "
                        "into PATH or set CMAKE_CUDA_COMPILER")
  endif()
  message(STATUS "smelt: no nvcc, so no smelt::cuda")
  return()
endif()

include(SmeltCuda20) # CMake 3.25 does not know that nvcc speaks C++20

add_library(smelt_cuda INTERFACE)
add_library(smelt::cuda ALIAS smelt_cuda)
set_target_properties(smelt_cuda PROPERTIES EXPORT_NAME cuda)
target_link_libraries(smelt_cuda INTERFACE smelt::smelt CUDA::cudart CUDA::cublas)
target_compile_features(smelt_cuda INTERFACE cuda_std_20)
set(SMELT_HAS_CUDA TRUE)
message(STATUS "smelt: CUDA ${CUDAToolkit_VERSION} (${CMAKE_CUDA_COMPILER})")
