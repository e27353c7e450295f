# SPDX-License-Identifier: Apache-2.0
#
# A run that changes its device twice: two steps on the CPU, one on CUDA from their checkpoint, one
# on the CPU from CUDA's. Its losses are those of a run that stayed, to 1e-4.
#   cmake -D PROGRAM=smelt -D TOKENS=smelt-tokens -D ON_DEVICE=on_device -D FOLDER=... -P smelt_cuda.cmake
file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
foreach(number RANGE 1 60)
  string(REPEAT "Line ${number} of a text that is not long. " 20 text)
  file(WRITE "${FOLDER}/text/${number}.txt" "${text}\n")
endforeach()
execute_process(COMMAND "${TOKENS}" text --near 0 --held-out 8 --out shards WORKING_DIRECTORY "${FOLDER}"
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# train(<folder> <device>): to the last of 4 steps, from wherever the folder stands.
function(train folder device)
  set(runner)
  if(device STREQUAL "cuda")
    set(runner "${ON_DEVICE}")
  endif()
  execute_process(
    COMMAND ${runner} "${PROGRAM}" train smelt-tiny --tokens shards --held-out shards --out ${folder}
            --steps 4 --sequences 2 --context 16 --held-out-tokens 32 --checkpoint-every 1 --keep 9
            --balance both --threads 1 --device ${device}
    WORKING_DIRECTORY "${FOLDER}" OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${device}: status ${status}: ${said}")
  endif()
endfunction()
# losses(<variable> <folder>): those of its steps, in units of 1e-6.
function(losses result folder)
  file(STRINGS "${FOLDER}/${folder}/stable/metrics.jsonl" lines REGEX "\"load_balance\"")
  set(found)
  foreach(line IN LISTS lines)
    string(JSON loss GET "${line}" loss)
    string(REGEX REPLACE "^([0-9]+)\\.([0-9]+)$" "\\1.\\2000000" loss "${loss}")
    string(REGEX REPLACE "^([0-9]+)\\.([0-9][0-9][0-9][0-9][0-9][0-9]).*" "\\1\\2" loss "${loss}")
    list(APPEND found "${loss}")
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

train(stays cpu)
file(COPY "${FOLDER}/stays/" DESTINATION "${FOLDER}/changes")
set(steps "${FOLDER}/changes/stable/step-0000000")
file(REMOVE_RECURSE "${steps}3" "${steps}4")
train(changes cuda)
file(REMOVE_RECURSE "${steps}4")
train(changes cpu)
losses(expected stays)
losses(found changes)
list(LENGTH found count)
if(NOT count EQUAL 4)
  message(FATAL_ERROR "expected 4 steps, found '${found}'")
endif()
foreach(one other IN ZIP_LISTS expected found)
  math(EXPR difference "${one} - ${other}")
  if(difference GREATER 500 OR difference LESS -500)
    message(FATAL_ERROR "expected losses '${expected}', found '${found}'")
  endif()
endforeach()
message("losses in units of 1e-6: ${expected} on the CPU, ${found} on both")
