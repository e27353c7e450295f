# SPDX-License-Identifier: Apache-2.0
#
# What the test folders call:
#   smelt_add_test(<name> SOURCES a.cpp ... [LIBRARIES smelt::host ...] [LABELS ...] [TIMEOUT s]
#                  [PRECOMPILE <header>...])
#   smelt_add_check(<name> COMMAND ... [LABELS ...] [TIMEOUT s])   a command as a test
#   smelt_add_device_test(<name> SOURCES a.cu ... [LIBRARIES ...] [LABELS ...] [TIMEOUT s] [ONE_ORDER])
#   smelt_add_skipped_test(<name> <reason> [LABELS ...])           shown as skipped, with the reason
# The folder's name is always a label: `ctest -L op` runs tests/op.

# doctest's main is compiled once.
find_package(doctest QUIET)
if(NOT doctest_FOUND)
  message(FATAL_ERROR "smelt: the tests need doctest (Debian: apt-get install doctest-dev); "
                      "-DSMELT_BUILD_TESTS=OFF builds without them")
endif()
add_library(smelt_test_main OBJECT "${PROJECT_SOURCE_DIR}/tests/support/doctest_main.cpp")
target_compile_features(smelt_test_main PRIVATE cxx_std_20)
target_link_libraries(smelt_test_main PUBLIC doctest::doctest smelt_program)

find_program(SMELT_GXX NAMES g++-12 g++)
find_program(SMELT_CLANGXX NAMES clang++-14 clang++)
find_program(SMELT_NVCC nvcc PATHS /usr/local/cuda/bin)
mark_as_advanced(SMELT_GXX SMELT_CLANGXX SMELT_NVCC)

# Two threads whatever the machine has, so that a result is the same everywhere; a short spin,
# since waiting threads that spin make a busy machine a hundred times slower. Under
# AddressSanitizer an allocation that cannot be granted returns null, as the tests of it expect.
set(SMELT_TEST_ENVIRONMENT OMP_NUM_THREADS=2 GOMP_SPINCOUNT=1000
                           ASAN_OPTIONS=allocator_may_return_null=1
                           UBSAN_OPTIONS=print_stacktrace=1)

# smelt_test_properties(<name> <processors> <timeout or empty> <labels>...)
function(smelt_test_properties name processors timeout)
  if(NOT timeout)
    set(timeout 300)
  endif()
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME room)
  set_tests_properties(
    ${name} PROPERTIES LABELS "${room};${ARGN}" ENVIRONMENT "${SMELT_TEST_ENVIRONMENT}"
                       SKIP_RETURN_CODE 77 TIMEOUT ${timeout} PROCESSORS ${processors})
endfunction()

function(smelt_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;PRECOMPILE")
  if(test_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "smelt_add_test(${name}): expected SOURCES, found '${ARGN}'")
  elseif(NOT test_SOURCES)
    message(WARNING "smelt_add_test(${name}): no sources, so no test")
    return()
  endif()
  if(NOT test_LIBRARIES)
    set(test_LIBRARIES smelt::host)
  endif()
  add_executable(test_${name} ${test_SOURCES})
  target_link_libraries(test_${name} PRIVATE smelt_test_main ${test_LIBRARIES} smelt_program)
  target_compile_features(test_${name} PRIVATE cxx_std_20)
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  # Release without its -DNDEBUG: a test keeps the assertions of what it tests. -O2 halves the
  # time to build and costs a test nothing it would notice.
  target_compile_options(test_${name} PRIVATE "$<$<CONFIG:Release>:-UNDEBUG;-O2>")
  # Where a program has many files, what they all read is read once.
  if(test_PRECOMPILE)
    target_precompile_headers(test_${name} PRIVATE ${test_PRECOMPILE})
  endif()
  add_test(NAME ${name} COMMAND test_${name})
  smelt_test_properties(${name} 2 "${test_TIMEOUT}" ${test_LABELS})
endfunction()

# A program for a device runs on a GPU where there is one, and otherwise on the CPU through nogpu
# under three thread schedules, or one where its kernels have tests of their own under all three.
function(smelt_add_device_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "ONE_ORDER" "TIMEOUT" "SOURCES;LIBRARIES;LABELS")
  set(orders --orders)
  if(test_ONE_ORDER)
    set(orders)
  endif()
  if(NOT SMELT_HAS_CUDA)
    smelt_add_skipped_test(${name} "needs nvcc" LABELS cuda ${test_LABELS})
    return()
  endif()
  add_executable(test_${name} ${test_SOURCES})
  target_link_libraries(test_${name} PRIVATE smelt_test_main smelt::cuda ${test_LIBRARIES}
                                             smelt_program)
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  smelt_device_program(test_${name})
  add_test(NAME ${name} COMMAND "${PROJECT_SOURCE_DIR}/tests/support/on_device" ${orders}
                                $<TARGET_FILE:test_${name}>)
  # Many blocks wait for one another, so that nogpu seldom fills two cores: two tests do.
  smelt_test_properties(${name} 1 "${test_TIMEOUT}" cuda ${test_LABELS})
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${SMELT_DEVICE_ENVIRONMENT})
endfunction()

function(smelt_add_check name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "TIMEOUT" "COMMAND;LABELS")
  add_test(NAME ${name} COMMAND ${test_COMMAND} COMMAND_EXPAND_LISTS)
  smelt_test_properties(${name} 1 "${test_TIMEOUT}" ${test_LABELS})
endfunction()

function(smelt_add_skipped_test name reason)
  cmake_parse_arguments(PARSE_ARGV 2 test "" "" "LABELS")
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  smelt_test_properties(${name} 1 "" ${test_LABELS})
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
endfunction()
