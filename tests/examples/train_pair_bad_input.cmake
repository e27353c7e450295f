# SPDX-License-Identifier: Apache-2.0
#
# train_pair on bad input: exit code 1, one line on stderr that names the culprit and the remedy,
# and no file and no folder left behind. Needs PROGRAM and FOLDER.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}/nothing" "${FOLDER}/binary")
string(REPEAT "All work and no play makes a dull text, but a text it is.\n" 400 text)
file(WRITE "${FOLDER}/text" "${text}")
file(WRITE "${FOLDER}/short" "abc")
file(WRITE "${FOLDER}/empty" "")
# A program is binary whatever the machine; gzip files begin with the bytes 1f 8b.
file(COPY_FILE "${CMAKE_COMMAND}" "${FOLDER}/binary/program")
file(ARCHIVE_CREATE OUTPUT "${FOLDER}/text.gz" PATHS "${FOLDER}/text" FORMAT raw COMPRESSION GZip)
set(out "${FOLDER}/out")
set(small --batch 2 --context 32 --steps 20 --threads 1)

# refused(<what> <regex of the one line> <argument>...)
function(refused what expected)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output
                  ERROR_VARIABLE errors WORKING_DIRECTORY "${FOLDER}")
  if(NOT code STREQUAL "1")
    message(SEND_ERROR "${what}: exit code ${code}, expected 1\n${errors}")
  endif()
  if(NOT errors MATCHES "^train_pair: [^\n]+\n$")
    message(SEND_ERROR "${what}: expected one line on stderr, found:\n${errors}")
  endif()
  if(NOT errors MATCHES "${expected}")
    message(SEND_ERROR "${what}: expected '${expected}', found:\n${errors}")
  endif()
  file(GLOB left "${out}*" "${FOLDER}/*.part" "${FOLDER}/train_pair*")
  if(left)
    message(SEND_ERROR "${what}: left behind: ${left}")
    file(REMOVE_RECURSE "${out}")
  endif()
endfunction()

refused("unknown option" "--nonsense.*--help" text --nonsense --out "${out}")
refused("no steps" "--steps.*1" text --steps 0 --out "${out}")
refused("words for a number" "--batch.*many" text --batch many --out "${out}")
refused("unknown precision" "--precision.*float16" text --precision float16 --out "${out}")
refused("negative rate" "--learning-rate" text --learning-rate -1 --out "${out}")
refused("steps and minutes" "--minutes" text --steps 5 --minutes 1 --out "${out}")

refused("missing file" "missing: no such file or folder; name one" missing ${small} --out "${out}")
refused("empty file" "empty: the file is empty; name one" empty ${small} --out "${out}")
refused("binary file" "program: a NUL byte.*name a text file" binary/program --out "${out}")
refused("compressed file" "text.gz: compressed.*gunzip" text.gz ${small} --out "${out}")
refused("folder without a file" "nothing: no text in it.*name a file" nothing --out "${out}")
refused("folder without text" "binary: no text in it .1 files: 1 binary" binary --out "${out}")
refused("a device" "/dev/null: neither a file nor a folder" /dev/null ${small} --out "${out}")
if(EXISTS /proc/self/mem)
  refused("unreadable file" "/proc/self/mem: cannot read.*leave it out" /proc/self/mem ${small} --out
          "${out}")
endif()
refused("good text and bad" "missing: no such file" text missing ${small} --out "${out}")

refused("too short text" "short: [0-9]+ tokens.*name more text or choose a smaller" short --out
        "${out}")
refused("a batch longer than the text" "text: [0-9]+ tokens.*fewer than one batch of 4000" text
        --batch 4000 --context 32 --out "${out}")
refused("a context longer than the text" "of 1 sequences of 100000.*smaller batch or context" text
        --batch 1 --context 100000 --out "${out}")
refused("a batch beyond all memory" "2\\^40" text --batch 4294967296 --context 16777216 --out
        "${out}")

refused("out is a file" "short.*choose another with --out" text ${small} --out short)
refused("out below a file" "short/out.*choose another with --out" text ${small} --out short/out)
if(EXISTS /proc/self)
  # Nobody may write there, not even root.
  refused("out cannot be made" "/proc/out.*choose another with --out" text ${small} --out /proc/out)
  refused("out cannot be written to" "/proc/self/.*choose a folder that may be written to" text
          ${small} --out /proc/self)
endif()
refused("a loss that is no number" "Baseline, step [0-9]+: loss.*lower the learning rate" text
        ${small} --learning-rate 1e30 --out "${out}")
