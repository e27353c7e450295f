# SPDX-License-Identifier: Apache-2.0
#
# smelt_find_cccl(): looks for the headers of CCCL (Thrust, CUB, libcu++) and, where it finds them,
# defines the INTERFACE target smelt_cccl with them as system headers and sets SMELT_CCCL_FOUND.
#
# The host path needs none of them; they let a test run the functors of op/ through Thrust on a
# machine without a GPU. Sought in this order:
#   SMELT_CCCL_DIR      a folder that holds thrust/version.h
#   a CUDA toolkit      beside nvcc, or CUDA_PATH, or /usr/local/cuda; CCCL has its own subfolder
#                       from toolkit 13 on
#   Debian              libthrust-dev and libcub-dev
set(SMELT_CCCL_DIR "" CACHE PATH "Folder with the headers of CCCL (the one that holds thrust/)")

function(smelt_find_cccl)
  find_program(SMELT_NVCC nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(SMELT_NVCC)
  set(places "${SMELT_CCCL_DIR}")
  if(NOT SMELT_CCCL_DIR)
    if(SMELT_NVCC)
      file(REAL_PATH "${SMELT_NVCC}" nvcc)
      cmake_path(GET nvcc PARENT_PATH toolkit)
      cmake_path(GET toolkit PARENT_PATH toolkit)
    endif()
    foreach(root "${toolkit}" "$ENV{CUDA_PATH}" /usr/local/cuda)
      if(root)
        list(APPEND places "${root}/include/cccl" "${root}/include")
      endif()
    endforeach()
    list(APPEND places /usr/local/include /usr/include)
  endif()
  find_path(SMELT_CCCL_INCLUDE_DIR thrust/version.h PATHS ${places} NO_DEFAULT_PATH)
  mark_as_advanced(SMELT_CCCL_INCLUDE_DIR)
  if(SMELT_CCCL_INCLUDE_DIR AND EXISTS "${SMELT_CCCL_INCLUDE_DIR}/cub")
    if(NOT TARGET smelt_cccl)
      add_library(smelt_cccl INTERFACE)
      target_include_directories(smelt_cccl SYSTEM INTERFACE "${SMELT_CCCL_INCLUDE_DIR}")
      # Thrust then runs on OpenMP. C++ alone: nvcc fails on sort and reduce with it.
      target_compile_definitions(
        smelt_cccl INTERFACE
        "$<$<COMPILE_LANGUAGE:CXX>:THRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_OMP>")
      message(STATUS "smelt: CCCL in ${SMELT_CCCL_INCLUDE_DIR}")
    endif()
    set(SMELT_CCCL_FOUND TRUE PARENT_SCOPE)
  else()
    set(SMELT_CCCL_FOUND FALSE PARENT_SCOPE)
    message(STATUS "smelt: no CCCL headers (set SMELT_CCCL_DIR, or on Debian: "
                   "apt-get install libthrust-dev libcub-dev)")
  endif()
endfunction()
