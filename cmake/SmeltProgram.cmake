# SPDX-License-Identifier: Apache-2.0
#
# smelt_program: what every program of this repository is compiled with. It is not installed and
# not part of any target that a user links.
add_library(smelt_program INTERFACE)
# smelt_cxx_options(<option>...): for what the C++ compiler compiles; nvcc is told apart, below.
function(smelt_cxx_options)
  foreach(option IN LISTS ARGN)
    target_compile_options(smelt_program INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${option}>")
  endforeach()
endfunction()
smelt_cxx_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion)
# clang counts signs as conversions, g++ does not: our programs index a std::vector by a 64-bit
# signed number as they please. tests/headers asks more of the library's own headers.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  smelt_cxx_options(-Wno-sign-conversion)
endif()
if(SMELT_WERROR)
  smelt_cxx_options(-Werror)
endif()
if(SMELT_NATIVE)
  smelt_cxx_options(-march=native)
  # Where there are 512-bit registers g++ and clang use half of them unless told.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mprefer-vector-width=512 SMELT_HAS_VECTOR_WIDTH)
  if(SMELT_HAS_VECTOR_WIDTH)
    smelt_cxx_options(-mprefer-vector-width=512)
  endif()
endif()
# A square root that may set errno is a call, and a loop over calls stays scalar: AdamW is three times
# as fast without. Nothing here reads errno after mathematics.
smelt_cxx_options(-fno-math-errno)
if(SMELT_SANITIZE)
  # The first report ends the program, so that a test cannot pass over it.
  smelt_cxx_options(-fsanitize=${SMELT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(smelt_program INTERFACE -fsanitize=${SMELT_SANITIZE})
endif()

# nvcc: its own warnings, and those of g++ behind it that its generated code can stand.
if(SMELT_HAS_CUDA)
  set(cuda_options "-Xcompiler=-Wall,-Wextra,-Wshadow" -Wno-deprecated-gpu-targets)
  if(SMELT_WERROR)
    list(APPEND cuda_options "-Werror=all-warnings")
  endif()
  target_compile_options(smelt_program INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
endif()

# smelt_device_program(<target>): a program with kernels. It holds PTX, which a GPU's driver compiles
# for itself when it first starts and which nogpu runs without one, and takes the runtime from a
# shared library, where nogpu can stand in.
function(smelt_device_program target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 80-virtual
                                             CUDA_RUNTIME_LIBRARY Shared)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-no-compress;-lineinfo>")
endfunction()

# For tests without a GPU: nogpu's stand-ins and translated kernels stay in the build folder.
set(SMELT_DEVICE_ENVIRONMENT "NOGPU_HOME=${PROJECT_BINARY_DIR}/nogpu"
                             "NOGPU_CACHE=${PROJECT_BINARY_DIR}/nogpu/kernels")
