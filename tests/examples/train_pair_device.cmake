# SPDX-License-Identifier: Apache-2.0
#
# train_pair and its device: without one, --cuda ends in one sentence and --device auto trains on the
# CPU with a note; with one (a GPU, or nogpu in its place) the losses are the CPU's. Needs PROGRAM,
# FOLDER, HAS_CUDA and ON_DEVICE (tests/support/on_device).
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
string(REPEAT "All work and no play makes a dull text, but a text it is.\n" 200 text)
file(WRITE "${FOLDER}/text" "${text}")
set(small text --batch 1 --context 16 --steps 2 --held-out-tokens 32)

# run(<expected code> <command>...): sets output and errors.
function(run expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output
                  ERROR_VARIABLE errors WORKING_DIRECTORY "${FOLDER}")
  if(NOT code STREQUAL expected)
    message(SEND_ERROR "${ARGN}: exit code ${code}, expected ${expected}:\n${output}\n${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

# No device is visible, whatever the machine has.
set(hidden ${CMAKE_COMMAND} -E env CUDA_VISIBLE_DEVICES=-1 "${PROGRAM}" ${small})
set(sentence "no CUDA device here")
if(NOT HAS_CUDA)
  set(sentence "built without CUDA")
endif()
foreach(option --cuda --device=cuda)
  run(1 ${hidden} ${option} --out none)
  if(NOT errors MATCHES "^train_pair: [^\n]*${sentence}[^\n]*\n$" OR NOT output STREQUAL "")
    message(SEND_ERROR "${option}: expected one line with '${sentence}', found:\n${output}${errors}")
  endif()
  if(EXISTS "${FOLDER}/none")
    message(SEND_ERROR "${option}: a folder was made for nothing")
  endif()
endforeach()
run(0 ${hidden} --device auto --out cpu)
if(NOT output MATCHES "on the CPU: [^\n]*${sentence}")
  message(SEND_ERROR "--device auto: expected a note, found:\n${output}")
endif()
run(1 ${hidden} --device gpu)
run(1 ${hidden} --device cpu --cuda)

if(NOT HAS_CUDA)
  return()
endif()
# Devices that are too old or too small, as nogpu can pretend to be.
cmake_path(GET ON_DEVICE PARENT_PATH support)
set(nogpu "${support}/../nogpu/nogpu-run" "${PROGRAM}" ${small} --cuda --out none)
run(1 ${CMAKE_COMMAND} -E env NOGPU_CC=75 ${nogpu})
if(NOT errors MATCHES "compute capability 7.5, expected 8.0 or newer")
  message(SEND_ERROR "an old device: expected its compute capability, found:\n${errors}")
endif()
run(1 ${CMAKE_COMMAND} -E env NOGPU_MEMORY=70 ${nogpu})
if(NOT errors MATCHES
   "out of device memory: asked for [0-9]+ bytes for [a-z ]+, free are [0-9]+ of [0-9]+; [^\n]*memory plan in bytes for 16 tokens: weights 20601600")
  message(SEND_ERROR "a small device: expected what was asked, free and planned, found:\n${errors}")
endif()
if(EXISTS "${FOLDER}/none")
  message(SEND_ERROR "a device that cannot: a folder was made for nothing")
endif()

run(0 "${ON_DEVICE}" "${PROGRAM}" ${small} --cuda --out cuda)
if(NOT output MATCHES "products by cuBLAS")
  message(SEND_ERROR "--cuda: expected 'products by cuBLAS', found:\n${output}")
endif()
foreach(model baseline smelt)
  foreach(device cpu cuda)
    file(STRINGS "${FOLDER}/${device}/${model}.jsonl" lines)
    set(${device} "")
    foreach(line IN LISTS lines)
      string(JSON loss GET "${line}" loss)
      string(SUBSTRING "${loss}" 0 6 loss) # four decimals of a loss between 1 and 10
      list(APPEND ${device} ${loss})
    endforeach()
  endforeach()
  if(NOT cpu STREQUAL cuda)
    message(SEND_ERROR "${model}: losses ${cpu} on the CPU, ${cuda} on CUDA")
  endif()
endforeach()
