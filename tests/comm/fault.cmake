# SPDX-License-Identifier: Apache-2.0
#
# Runs PROGRAM WHAT on three ranks: it must fail within 30 seconds and say EXPECT, a list of regular
# expressions. Needs MPIEXEC, PROGRAM, WHAT and EXPECT.
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND "${MPIEXEC}" -np 3 "${PROGRAM}" ${WHAT} RESULT_VARIABLE status
                OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 30)
if(status STREQUAL "0")
  message(FATAL_ERROR "${WHAT}: expected a failing exit, found 0 and:\n${output}")
elseif(status MATCHES "timeout")
  message(FATAL_ERROR "${WHAT}: did not end within 30 s and said:\n${output}")
endif()
# One line holds it; a "." of an expression must not reach into the next.
foreach(expected IN LISTS EXPECT)
  string(REPLACE ";" "," lines "${output}")
  string(REPLACE "\n" ";" lines "${lines}")
  list(FILTER lines INCLUDE REGEX "${expected}")
  if(NOT lines)
    message(FATAL_ERROR "${WHAT}: expected a line '${expected}', found:\n${output}")
  endif()
endforeach()
if(output MATCHES "survived")
  message(FATAL_ERROR "${WHAT}: a rank went on after the fault:\n${output}")
endif()
message(STATUS "${WHAT}: status ${status}, ${lines}")
