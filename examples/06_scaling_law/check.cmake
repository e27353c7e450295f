# SPDX-License-Identifier: Apache-2.0
#
# Runs the program as a user would, rightly and wrongly. A wrong use must end with exit code 1, one
# line on stderr that says what is wrong, nothing on stdout, and no folder, whole or half.
# Needs PROGRAM and FOLDER (emptied first).
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
find_program(gnuplot gnuplot)
set(figures "")
if(NOT gnuplot)
  set(figures --no-figures)
endif()

# --- rightly -----------------------------------------------------------------------------------

# works(<output variable> <arguments>...)
function(works output)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE code
                  OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0)
    message(SEND_ERROR "scaling_law ${ARGN}: exit code ${code}, expected 0\n${err}")
  endif()
  set(${output} "${out}" PARENT_SCOPE)
endfunction()

function(says text)
  foreach(part IN LISTS ARGN)
    string(FIND "${text}" "${part}" at)
    if(at EQUAL -1)
      message(SEND_ERROR "the output lacks '${part}':\n${text}")
    endif()
  endforeach()
endfunction()

# has_files(<folder> <names>...)
function(has_files folder)
  foreach(name IN LISTS ARGN)
    set(size 0)
    if(EXISTS "${FOLDER}/${folder}/${name}")
      file(SIZE "${FOLDER}/${folder}/${name}" size)
    endif()
    if(size LESS 100)
      message(SEND_ERROR "${folder}/${name}: ${size} bytes, expected a file with content")
    endif()
  endforeach()
endfunction()

works(text --help)
says("${text}" --endpoints --demo --draws)

works(text --paper)
says("${text}" "17.9 (18.0)" "91 (91)" "1.62e+10 tokens (printed 1.6e+10)")

works(text --demo --out first --draws 50 --threads 1 ${figures})
says("${text}" "They are no measurements" "Compute-equivalent gain of smelt over baseline"
     "50 draws of 12 cells, paired" "Written to first")
has_files(first law.json gain.csv residuals.csv endpoints.csv)
if(gnuplot)
  has_files(first loss.png loss.svg residuals.png residuals.svg gain.png gain.svg)
  file(READ "${FOLDER}/first/gain.png" magic LIMIT 8 HEX)
  if(NOT magic STREQUAL "89504e470d0a1a0a")
    message(SEND_ERROR "first/gain.png is no PNG")
  endif()
endif()
file(READ "${FOLDER}/first/law.json" law)
string(JSON high ERROR_VARIABLE problem GET "${law}" gains 4 high)
if(problem)
  message(SEND_ERROR "law.json: ${problem}")
endif()

# The demonstration's own file gives the same laws to the last bit, at another number of threads;
# and a second run replaces the first.
works(text --endpoints first/endpoints.csv --out second --draws 50 --threads 3 ${figures})
works(text --endpoints first/endpoints.csv --out second/ --draws 50 --threads 2 ${figures})
file(READ "${FOLDER}/second/law.json" again)
foreach(key fits gains domain_gains)
  string(JSON one GET "${law}" ${key})
  string(JSON two GET "${again}" ${key})
  if(NOT one STREQUAL two)
    message(SEND_ERROR "law.json: ${key} differ between 1 and 2 threads")
  endif()
endforeach()

# One architecture alone, a folder of runs, names that would be code to gnuplot.
set(rows "")
file(STRINGS "${FOLDER}/first/endpoints.csv" lines)
foreach(line IN LISTS lines)
  if(line MATCHES "^(architecture|baseline,[^,]*,,)")
    string(REGEX REPLACE "^baseline" "it's_a_`test`" line "${line}")
    string(APPEND rows "${line}\n")
  endif()
endforeach()
file(WRITE "${FOLDER}/alone.csv" "${rows}")
works(text --endpoints alone.csv --out alone --draws 20 ${figures})
says("${text}" "it's_a_`test`" "72, 12")
if(EXISTS "${FOLDER}/alone/gain.csv")
  message(SEND_ERROR "alone/gain.csv: one architecture has no gain")
endif()

set(run 0)
foreach(line IN LISTS lines)
  if(line MATCHES "^(baseline|smelt),([^,]*),,([^,]*),([^,]*),([^,]*),([^,]*)$")
    math(EXPR run "${run} + 1")
    file(WRITE "${FOLDER}/runs/${run}/metrics.jsonl"
         "{\"architecture\": \"${CMAKE_MATCH_1}\", \"cell\": \"${CMAKE_MATCH_2}\", "
         "\"flops_per_token\": ${CMAKE_MATCH_3}, \"sparsity\": ${CMAKE_MATCH_4}}\n"
         "{\"step\": 1, \"loss\": 9.5, \"tokens\": 1}\n"
         "{\"tokens\": ${CMAKE_MATCH_5}, \"validation_loss\": ${CMAKE_MATCH_6}, "
         "\"domain_losses\": {\"Code\": ${CMAKE_MATCH_6}}}\n{\"note\": \"end\"}\n")
    # As the program smelt leaves them: endpoints in one file, beside files of single steps.
    file(APPEND "${FOLDER}/runs_in_one/${CMAKE_MATCH_1}/runs.jsonl"
         "{\"architecture\": \"${CMAKE_MATCH_1}\", \"cell\": \"${CMAKE_MATCH_2}\", "
         "\"flops_per_token\": ${CMAKE_MATCH_3}, \"sparsity\": ${CMAKE_MATCH_4}, "
         "\"tokens\": ${CMAKE_MATCH_5}, \"validation_loss\": ${CMAKE_MATCH_6}}\n")
    file(WRITE "${FOLDER}/runs_in_one/${CMAKE_MATCH_1}/stable/metrics.jsonl"
         "{\"step\": 1, \"loss\": 9.5, \"tokens\": 1}\n")
  endif()
endforeach()
works(text --runs runs --out from_runs --draws 50 ${figures})
file(READ "${FOLDER}/from_runs/law.json" of_runs)
works(text --runs runs_in_one --out from_one --draws 50 ${figures})
file(READ "${FOLDER}/from_one/law.json" in_one)
# Rows come in another order there, so sums differ in their last bits: compare five digits.
string(JSON one GET "${law}" fits 0 coefficients E)
string(JSON two GET "${of_runs}" fits 0 coefficients E)
string(JSON three GET "${in_one}" fits 0 coefficients E)
foreach(name one two three)
  string(SUBSTRING "${${name}}" 0 6 ${name})
endforeach()
if(NOT one STREQUAL two OR NOT one STREQUAL three)
  message(SEND_ERROR "E is ${one} from the file, ${two} from the runs and ${three} from runs.jsonl")
endif()

# --- wrongly -----------------------------------------------------------------------------------

# fails(<text that the one line must hold> <arguments>...)
function(fails expected)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} --out none WORKING_DIRECTORY "${FOLDER}"
                  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(REGEX MATCHALL "\n" lines "${err}")
  list(LENGTH lines count)
  string(FIND "${err}" "${expected}" at)
  file(GLOB left "${FOLDER}/none*")
  if(NOT code EQUAL 1 OR NOT count EQUAL 1 OR at EQUAL -1 OR NOT out STREQUAL "" OR left)
    message(SEND_ERROR "scaling_law ${ARGN}: exit code ${code}, ${count} lines on stderr, left "
                       "'${left}', stdout '${out}'; expected 1, one line with '${expected}', "
                       "nothing:\n${err}")
  endif()
endfunction()

# broken(<name> <row> <new text of that row>): the demonstration's file with one row replaced
function(broken name row text)
  set(copy "")
  set(number 0)
  foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(number EQUAL row)
      set(line "${text}")
    endif()
    string(APPEND copy "${line}\n")
  endforeach()
  file(WRITE "${FOLDER}/${name}" "${copy}")
endfunction()

fails("0 inputs given")
fails("--wrong" --wrong)
fails("2 inputs given" --demo --paper)
fails("--draws" --demo --draws many)
fails("--draws 1, expected 2 or more" --demo --draws 1)
fails("--sparsity 95" --demo --sparsity 95)
fails("--compute 0" --demo --compute 0)
fails("--confidence 95" --demo --confidence 95)
fails("--interval" --demo --interval wide)
fails("no cell 'none' to leave out" --demo --leave-out none)
fails("no endpoint of architecture 'other'" --demo --target other)
fails("missing.csv: cannot be read" --endpoints missing.csv)
fails("cannot be read" --endpoints runs)
file(WRITE "${FOLDER}/empty.csv" "")
fails("empty.csv: the file is empty" --endpoints empty.csv)
fails("missing: not a folder" --runs missing)
file(MAKE_DIRECTORY "${FOLDER}/no_runs")
fails("no_runs: no metrics.jsonl or runs.jsonl at any depth" --runs no_runs)
file(WRITE "${FOLDER}/cut_runs/a/metrics.jsonl" "{\"architecture\": \"a\"}\n{\"tokens\": 12")
fails("row 2: not a JSON object" --runs cut_runs)
file(WRITE "${FOLDER}/bare_runs/a/metrics.jsonl" "{\"loss\": 2.5}\n")
fails("has 'architecture'" --runs bare_runs)

broken(nan.csv 7 "baseline,100M-85,,633000000,0.86,215600000000,nan")
fails("nan.csv: row 7: loss is nan" --endpoints nan.csv)
broken(negative.csv 7 "baseline,100M-85,,633000000,0.86,-1,2")
fails("negative.csv: row 7: tokens D is -1" --endpoints negative.csv)
broken(percent.csv 7 "baseline,100M-85,,633000000,86,215600000000,2")
fails("percent.csv: row 7: sparsity S is 86" --endpoints percent.csv)
list(GET lines 5 sixth)
broken(twice.csv 7 "${sixth}")
fails("twice.csv: row 7: repeats row 6" --endpoints twice.csv)
broken(short.csv 7 "baseline,100M-85")
fails("short.csv: row 7: 2 cells, expected 7" --endpoints short.csv)
file(WRITE "${FOLDER}/few.csv" "architecture,F,S,D,loss\na,1e9,0.9,1e10,2\na,2e9,0.9,2e10,1.9\n")
fails("b needs at least 2 distinct sparsities S, found 1" --endpoints few.csv)
file(WRITE "${FOLDER}/a_file" "x")
execute_process(COMMAND "${PROGRAM}" --demo --draws 20 --no-figures --out a_file
                WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE code OUTPUT_VARIABLE out
                ERROR_VARIABLE err)
if(NOT code EQUAL 1 OR NOT err MATCHES "a_file: is not a folder")
  message(SEND_ERROR "--out a_file: exit code ${code}, ${err}")
endif()

# Pictures without gnuplot: said before the work begins.
execute_process(COMMAND "${CMAKE_COMMAND}" -E env PATH=/nonexistent "${PROGRAM}" --demo --out none
                WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE code ERROR_VARIABLE err)
if(NOT code EQUAL 1 OR NOT err MATCHES "gnuplot is not installed.*--no-figures")
  message(SEND_ERROR "without gnuplot: exit code ${code}, ${err}")
endif()

file(GLOB stages "${FOLDER}/*.part*" "${FOLDER}/*/*.part*")
if(stages)
  message(SEND_ERROR "left behind: ${stages}")
endif()
