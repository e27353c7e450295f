# SPDX-License-Identifier: Apache-2.0
#
# Compiles SOURCE with COMPILER (KIND: g++, clang++ or nvcc) and passes when the compiler refuses
# it with every text that the file expects, and accepts it, without a warning, under -DREPAIRED.
# Needs COMPILER, KIND, SOURCE, INCLUDE_DIR, and OBJECT, a file that nvcc may write.
cmake_minimum_required(VERSION 3.25)

file(READ "${SOURCE}" text)

# The expected texts: "// expect: <regex>" within the first five lines. Read from the text rather
# than by file(STRINGS), as a list would lose the brackets of a regex.
set(head "${text}")
set(expectations 0)
foreach(number RANGE 1 5)
  string(FIND "${head}" "\n" end)
  string(SUBSTRING "${head}" 0 ${end} line)
  if(line MATCHES "^// expect: (.+)$")
    math(EXPR expectations "${expectations} + 1")
    set(expect_${expectations} "${CMAKE_MATCH_1}")
  endif()
  if(end EQUAL -1)
    break()
  endif()
  math(EXPR end "${end} + 1")
  string(SUBSTRING "${head}" ${end} -1 head)
endforeach()
if(expectations EQUAL 0)
  message(FATAL_ERROR "${SOURCE}: no '// expect: <regex>' in its first five lines")
endif()
if(NOT text MATCHES "\n#ifdef REPAIRED")
  message(FATAL_ERROR "${SOURCE}: no legal twin; expected '#ifdef REPAIRED'")
endif()

# Diagnostics without the source line and the caret: an expected text that stands in the source
# itself, as that of a static_assert does, must not match its echo.
if(KIND STREQUAL "nvcc")
  set(command "${COMPILER}" -std=c++20 -x cu -c -o "${OBJECT}" "-I${INCLUDE_DIR}")
  set(strict -Werror all-warnings)
else()
  set(caret -fno-diagnostics-show-caret)
  if(KIND STREQUAL "clang++")
    set(caret -fno-caret-diagnostics)
  endif()
  set(command "${COMPILER}" -std=c++20 -fsyntax-only ${caret} "-I${INCLUDE_DIR}")
  set(strict -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)
endif()

execute_process(COMMAND ${command} "${SOURCE}" RESULT_VARIABLE exit_code
                OUTPUT_VARIABLE diagnostics ERROR_VARIABLE diagnostics)
if(exit_code EQUAL 0)
  message(FATAL_ERROR "${SOURCE}: ${KIND} accepts it; it must be refused")
endif()
if(NOT exit_code MATCHES "^[12]$" OR diagnostics MATCHES "internal compiler error|bug report|Stack dump")
  message(FATAL_ERROR "${SOURCE}: ${KIND} crashed (exit ${exit_code}):\n${diagnostics}")
endif()
foreach(number RANGE 1 ${expectations})
  if(NOT diagnostics MATCHES "${expect_${number}}")
    message(FATAL_ERROR "${SOURCE}: expected of ${KIND}\n  ${expect_${number}}\n"
                        "and found\n${diagnostics}")
  endif()
endforeach()

execute_process(COMMAND ${command} ${strict} -DREPAIRED "${SOURCE}" RESULT_VARIABLE exit_code
                OUTPUT_VARIABLE diagnostics ERROR_VARIABLE diagnostics)
if(NOT exit_code EQUAL 0)
  message(FATAL_ERROR "${SOURCE}: ${KIND} must accept it under -DREPAIRED, and says\n${diagnostics}")
endif()
