# SPDX-License-Identifier: Apache-2.0
#
# many_ranks on 1, 2 and 4 ranks prints the same losses; a wrong word is refused in one line.
#   cmake -D MPIEXEC=mpirun -D PROGRAM=many_ranks -P many_ranks.cmake
function(run_ranks result ranks)
  execute_process(COMMAND "${MPIEXEC}" -np ${ranks} "${PROGRAM}" ${ARGN}
                  OUTPUT_VARIABLE out ERROR_VARIABLE complaint RESULT_VARIABLE status)
  set(${result}_status "${status}" PARENT_SCOPE)
  set(${result}_complaint "${complaint}" PARENT_SCOPE)
  string(REGEX MATCHALL "step +[0-9]+ +loss [0-9.]+" losses "${out}")
  set(${result} "${losses}" PARENT_SCOPE)
endfunction()

run_ranks(one 1)
list(LENGTH one lines)
if(NOT one_status EQUAL 0 OR NOT lines EQUAL 5)
  message(FATAL_ERROR "one rank: expected 5 losses and status 0, found '${one}', ${one_status}: ${one_complaint}")
endif()
run_ranks(two 2)
run_ranks(four 4 2)
foreach(many IN ITEMS two four)
  if(NOT "${${many}}" STREQUAL "${one}")
    message(FATAL_ERROR "${many} ranks: expected '${one}', found '${${many}}': ${${many}_complaint}")
  endif()
endforeach()
run_ranks(wrong 2 3)
if(NOT wrong_status EQUAL 1 OR NOT wrong_complaint MATCHES "expected a divisor of 2 ranks, found 3")
  message(FATAL_ERROR "3 expert ranks of 2: found status ${wrong_status}: ${wrong_complaint}")
endif()
