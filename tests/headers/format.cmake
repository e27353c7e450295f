# SPDX-License-Identifier: Apache-2.0
#
# Fails on a source that clang-format would change. Needs ROOT and CLANG_FORMAT (version 14).
# To mend: clang-format-14 -i FILE
cmake_minimum_required(VERSION 3.25)

set(patterns "")
foreach(folder include tests examples benchmarks tools)
  foreach(ending hpp cuh cpp cu)
    list(APPEND patterns "${ROOT}/${folder}/*.${ending}")
  endforeach()
endforeach()
file(GLOB_RECURSE sources ${patterns})
execute_process(COMMAND "${CLANG_FORMAT}" --dry-run -Werror --style=file ${sources}
                WORKING_DIRECTORY "${ROOT}" RESULT_VARIABLE exit_code)
if(NOT exit_code EQUAL 0)
  message(FATAL_ERROR "sources that are not formatted; mend with: clang-format-14 -i FILE")
endif()
list(LENGTH sources count)
message(STATUS "${count} sources formatted")
