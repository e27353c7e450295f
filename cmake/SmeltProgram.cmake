# SPDX-License-Identifier: Apache-2.0
#
# smelt_program: what every program of this repository is compiled with. It is not installed and
# not part of any target that a user links.
add_library(smelt_program INTERFACE)
target_compile_options(smelt_program INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
# clang counts signs as conversions, g++ does not: our programs index a std::vector by a 64-bit
# signed number as they please. tests/headers asks more of the library's own headers.
target_compile_options(smelt_program INTERFACE "$<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>")
if(SMELT_WERROR)
  target_compile_options(smelt_program INTERFACE -Werror)
endif()
if(SMELT_NATIVE)
  target_compile_options(smelt_program INTERFACE -march=native)
  # Where there are 512-bit registers g++ and clang use half of them unless told.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-mprefer-vector-width=512 SMELT_HAS_VECTOR_WIDTH)
  if(SMELT_HAS_VECTOR_WIDTH)
    target_compile_options(smelt_program INTERFACE -mprefer-vector-width=512)
  endif()
endif()
# A square root that may set errno is a call, and a loop over calls stays scalar: AdamW is three times
# as fast without. Nothing here reads errno after mathematics.
target_compile_options(smelt_program INTERFACE -fno-math-errno)
if(SMELT_SANITIZE)
  # The first report ends the program, so that a test cannot pass over it.
  target_compile_options(smelt_program INTERFACE -fsanitize=${SMELT_SANITIZE}
                                                 -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(smelt_program INTERFACE -fsanitize=${SMELT_SANITIZE})
endif()
