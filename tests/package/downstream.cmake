# SPDX-License-Identifier: Apache-2.0
#
# Builds and runs examples/downstream by one WAY (find_package, add_subdirectory, fetch_content)
# with one COMPONENT (types, host, cuda). Needs SOURCE and BUILD (of smelt), FOLDER (made anew),
# COMPILER, GENERATOR and, possibly empty, LAUNCHER.
cmake_minimum_required(VERSION 3.25)

# step(<what> <command>...): runs it, and ends this test with its output where it fails.
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE exit_code OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT exit_code EQUAL 0)
    message(FATAL_ERROR "${what} failed:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${FOLDER}")
set(options -D "CMAKE_CXX_COMPILER=${COMPILER}" -D "CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -D
            CMAKE_BUILD_TYPE=Release -D DOWNSTREAM_WAY=${WAY})

if(WAY STREQUAL "find_package")
  step("install" ${CMAKE_COMMAND} --install "${BUILD}" --prefix "${FOLDER}/first")
  # A package must not remember where it was installed, nor where its sources lay.
  file(RENAME "${FOLDER}/first" "${FOLDER}/prefix")
  file(GLOB_RECURSE installed "${FOLDER}/prefix/*.cmake")
  foreach(file IN LISTS installed)
    file(READ "${file}" text)
    foreach(path "${SOURCE}/" "${FOLDER}/first")
      string(FIND "${text}" "${path}" at)
      if(NOT at EQUAL -1)
        message(FATAL_ERROR "${file} names ${path}")
      endif()
    endforeach()
  endforeach()
  list(APPEND options -D "CMAKE_PREFIX_PATH=${FOLDER}/prefix")
elseif(WAY STREQUAL "add_subdirectory")
  list(APPEND options -D "SMELT_FOLDER=${SOURCE}")
else()
  # FetchContent's own switch for taking a checkout that is there instead of fetching.
  list(APPEND options -D "FETCHCONTENT_SOURCE_DIR_SMELT=${SOURCE}")
endif()
if(COMPONENT STREQUAL "types")
  # The types must not ask for what only the host needs.
  list(APPEND options -D DOWNSTREAM_HOST=OFF -D CMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON -D
       CMAKE_DISABLE_FIND_PACKAGE_OpenBLAS=ON -D CMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON -D
       CMAKE_DISABLE_FIND_PACKAGE_fmt=ON)
elseif(COMPONENT STREQUAL "cuda")
  # CUDA must not ask for the host's libraries either. PTX alone: see tests/support/on_device.
  list(APPEND options -D DOWNSTREAM_HOST=OFF -D DOWNSTREAM_CUDA=ON -D
       CMAKE_CUDA_ARCHITECTURES=80-virtual -D "CMAKE_CUDA_COMPILER=${NVCC}" -D
       CMAKE_CUDA_RUNTIME_LIBRARY=Shared -D CMAKE_CUDA_FLAGS=-no-compress -D
       CMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON -D CMAKE_DISABLE_FIND_PACKAGE_OpenBLAS=ON)
endif()

# A copy, so that nothing of our own tree can be found by chance.
file(COPY "${SOURCE}/examples/downstream" DESTINATION "${FOLDER}")
step("configure" ${CMAKE_COMMAND} -S "${FOLDER}/downstream" -B "${FOLDER}/build" -G "${GENERATOR}"
     ${options})
step("build" ${CMAKE_COMMAND} --build "${FOLDER}/build")
if(EXISTS "${FOLDER}/build/smelt/tests" OR EXISTS "${FOLDER}/build/_deps/smelt-build/tests")
  message(FATAL_ERROR "the tests of smelt were built into the user's project")
endif()

step("describe" "${FOLDER}/build/describe")
if(NOT output MATCHES "3872225280 parameters")
  message(FATAL_ERROR "describe: expected 3872225280 parameters, found:\n${output}")
endif()
if(COMPONENT STREQUAL "host")
  step("multiply" "${FOLDER}/build/multiply")
  if(NOT output MATCHES "19 22 43 50")
    message(FATAL_ERROR "multiply: expected 19 22 43 50, found:\n${output}")
  endif()
endif()
if(COMPONENT STREQUAL "cuda")
  step("train" "${SOURCE}/tests/support/on_device" "${FOLDER}/build/train")
  if(NOT output MATCHES "learned")
    message(FATAL_ERROR "train: expected a loss that falls, found:\n${output}")
  endif()
endif()
