# SPDX-License-Identifier: Apache-2.0
#
# The types as one file, for Compiler Explorer: <build folder>/single_include/smelt.hpp, made anew
# whenever a header changes. It is generated and not kept in the repository, so it cannot be stale.
file(GLOB_RECURSE smelt_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/smelt/*.hpp")
set(SMELT_SINGLE_HEADER "${PROJECT_BINARY_DIR}/single_include/smelt.hpp")
if(EXISTS "${PROJECT_SOURCE_DIR}/include/smelt/smelt.hpp")
  add_custom_command(
    OUTPUT "${SMELT_SINGLE_HEADER}"
    COMMAND ${CMAKE_COMMAND} -D "OUTPUT=${SMELT_SINGLE_HEADER}" -P
            "${PROJECT_SOURCE_DIR}/tools/single_header.cmake"
    DEPENDS "${PROJECT_SOURCE_DIR}/tools/single_header.cmake" ${smelt_headers}
    COMMENT "Writing single_include/smelt.hpp"
    VERBATIM)
  add_custom_target(smelt_single_header ALL DEPENDS "${SMELT_SINGLE_HEADER}")
endif()
