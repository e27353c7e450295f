# SPDX-License-Identifier: Apache-2.0
#
# streets.cmake and sources.cmake must be able to fail: one planted fault each, and the words it
# must be reported in; then trees without a fault, which must pass. Needs FOLDER, made anew.
cmake_minimum_required(VERSION 3.25)

set(begin "// SPDX-License-Identifier: Apache-2.0\n// A comment.\n#pragma once\n")

# run(<script> <case> <words, or empty where it must pass> <file> <text> [<file> <text>...])
function(run script case words)
  set(tree "${FOLDER}/${case}")
  file(REMOVE_RECURSE "${tree}")
  list(LENGTH ARGN left)
  math(EXPR last "${ARGC} - 1")
  foreach(index RANGE 3 ${last} 2)
    math(EXPR next "${index} + 1")
    file(WRITE "${tree}/include/smelt/${ARGV${index}}" "${ARGV${next}}")
  endforeach()
  execute_process(
    COMMAND ${CMAKE_COMMAND} -D "INCLUDE_DIR=${tree}/include" -D "ROOT=${tree}" -P
            "${CMAKE_CURRENT_LIST_DIR}/${script}.cmake"
    RESULT_VARIABLE exit_code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(words STREQUAL "" AND NOT exit_code EQUAL 0)
    message(SEND_ERROR "${script} ${case}: must pass, and says ${output}")
  elseif(NOT words STREQUAL "" AND (exit_code EQUAL 0 OR NOT output MATCHES "${words}"))
    message(SEND_ERROR "${script} ${case}: expected '${words}', found exit ${exit_code}: ${output}")
  endif()
endfunction()

# A tree that is in order, with one file added that is or is not.
function(street case words file include)
  run(streets "street_${case}" "${words}"
      error.hpp "${begin}#include <string>\n"
      arch/span.hpp "${begin}#include <cstdint>\n"
      budget/flops.hpp "${begin}#include <smelt/arch/span.hpp>\n"
      match/tolerance.hpp "${begin}#include <smelt/budget/flops.hpp>\n"
      exec/view.hpp "${begin}#include <smelt/error.hpp>\n#include <vector>\n"
      op/route.hpp "${begin}#include <smelt/exec/view.hpp>\n"
      model/weights.hpp "${begin}#include <smelt/op/route.hpp>\n"
      train/step.hpp "${begin}#include <smelt/model/weights.hpp>\n"
      eval/tasks.hpp "${begin}#include <smelt/model/weights.hpp>\n"
      comm/alone.hpp "${begin}#include <smelt/exec/view.hpp>\n"
      law/fit.hpp "${begin}#include <vector>\n"
      report.hpp "${begin}#include <smelt/report/table.hpp>\n"
      report/table.hpp "${begin}#include <smelt/law/fit.hpp>\n"
      smelt.hpp "${begin}#include <smelt/match/tolerance.hpp>\n"
      ${file} "${begin}#include ${include}\n")
endfunction()

street(right "" op/loss.hpp <smelt/arch/span.hpp>)
set(wrong "a street taken the wrong way")
street(arch_to_budget "${wrong}" arch/stack.hpp <smelt/budget/flops.hpp>)
street(budget_to_match "${wrong}" budget/memory.hpp <smelt/match/tolerance.hpp>)
street(exec_to_op "${wrong}" exec/policy.hpp <smelt/op/route.hpp>)
street(op_to_model "${wrong}" op/loss.hpp <smelt/model/weights.hpp>)
street(op_to_kernel "${wrong}" op/loss.hpp <smelt/kernel/route.cuh>)
street(kernel_to_model "${wrong}" kernel/route.cuh <smelt/model/weights.hpp>)
street(model_to_train "${wrong}" model/forward.hpp <smelt/train/step.hpp>)
street(train_to_eval "${wrong}" train/run.hpp <smelt/eval/tasks.hpp>)
street(comm_to_model "${wrong}" comm/data_parallel.hpp <smelt/model/weights.hpp>)
street(io_to_op "${wrong}" io/tokens.hpp <smelt/op/route.hpp>)
street(law_to_arch "${wrong}" law/gain.hpp <smelt/arch/span.hpp>)
street(model_to_report "${wrong}" model/forward.hpp <smelt/report/table.hpp>)
street(room_to_door "${wrong}" model/forward.hpp <smelt/smelt.hpp>)
street(door_to_report "${wrong}" host.hpp <smelt/report/table.hpp>)
street(door_of_types_to_exec "${wrong}" smelt.hpp <smelt/exec/view.hpp>)
street(error_to_arch "${wrong}" error.hpp <smelt/arch/span.hpp>)
street(relative "write it as" op/loss.hpp "\"view.hpp\"")
street(quoted_right "" op/loss.hpp "\"smelt/arch/span.hpp\"")
street(quoted_wrong "${wrong}" op/loss.hpp "\"smelt/model/weights.hpp\"")
street(missing "does not exist" op/loss.hpp <smelt/arch/absent.hpp>)
street(unknown_room "is not a room" utils/things.hpp <cstdint>)
street(unknown_door "not one of" common.hpp <cstdint>)
street(dear_header "reaches <vector>" arch/span.hpp <vector>)

run(sources source_right "" error.hpp "${begin}int a;\nint b;\nint c;\n")
run(sources no_licence "SPDX" error.hpp "#pragma once\n// a\n// b\n")
run(sources tab "a tab" error.hpp "${begin}\tint a;\n")
string(ASCII 195 169 accent)
run(sources not_ascii "outside ASCII" error.hpp "${begin}// ${accent}\n")
set(slash "/")  # written apart, or this very file would be at fault
run(sources machine_path "a path of one machine" error.hpp "${begin}// see ${slash}home/me/file\n")
run(sources no_pragma "no #pragma once" error.hpp "// SPDX-License-Identifier: Apache-2.0\nint a;\n")
run(sources macro "begins SMELT_" error.hpp "${begin}#define CHECK 1\n")
run(sources few_comments "% of the lines" error.hpp "${begin}a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n")
run(sources many_comments "% of the lines" error.hpp "${begin}// a\n// b\n// c\n")
