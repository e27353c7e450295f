# SPDX-License-Identifier: Apache-2.0
#
# check.cmake must be able to fail: each program below is wrong in one way and must be reported in
# these words; the last one is right. Needs COMPILER (g++) and FOLDER, which is made anew.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${FOLDER}")
set(first "// SPDX-License-Identifier: Apache-2.0\n")
set(twin "#ifdef REPAIRED\nint main() {}\n#else\n")
set(refused "static_assert(sizeof(int) == 1, \"the remedy\");\n#endif\n")

# case(<name> <what check.cmake must say, or empty where it must pass> <program>)
function(case name complaint program)
  file(WRITE "${FOLDER}/${name}.cpp" "${program}")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -D "COMPILER=${COMPILER}" -D KIND=g++ -D "SOURCE=${FOLDER}/${name}.cpp"
            -D "INCLUDE_DIR=${FOLDER}" -D "OBJECT=${FOLDER}/${name}.o" -P
            "${CMAKE_CURRENT_LIST_DIR}/check.cmake"
    RESULT_VARIABLE exit_code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(complaint STREQUAL "" AND NOT exit_code EQUAL 0)
    message(SEND_ERROR "${name}: must pass, and says ${output}")
  elseif(NOT complaint STREQUAL "" AND (exit_code EQUAL 0 OR NOT output MATCHES "${complaint}"))
    message(SEND_ERROR "${name}: expected '${complaint}', found exit ${exit_code}: ${output}")
  endif()
endfunction()

case(accepted "accepts it" "${first}// expect: the remedy\n${twin}int main() {}\n#endif\n")
case(other_words "expected of" "${first}// expect: another remedy\n${twin}${refused}")
case(one_of_two "expected of" "${first}// expect: the remedy\n// expect: missing\n${twin}${refused}")
case(echo "expected of"
     "${first}// expect: the remedy\n${twin}int wrong = \"\"; // the remedy\n#endif\n")
case(no_expectation "no '// expect" "${first}${twin}${refused}")
case(no_twin "no legal twin" "${first}// expect: the remedy\n${refused}")
case(broken_twin "must accept it"
     "${first}// expect: the remedy\n#ifdef REPAIRED\nint main() { return x; }\n#else\n${refused}")
case(warned_twin "must accept it"
     "${first}// expect: the remedy\n#ifdef REPAIRED\nint main() { int unused; }\n#else\n${refused}")
case(right "" "${first}// expect: the remedy\n${twin}${refused}")
