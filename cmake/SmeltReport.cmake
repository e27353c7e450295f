# SPDX-License-Identifier: Apache-2.0
#
# smelt::report: tables, progress and figures, the only room that knows fmt. Without fmt the target
# is not there, and nothing else of the library misses it.
find_package(fmt 9 QUIET)
if(TARGET smelt_host AND fmt_FOUND)
  add_library(smelt_report INTERFACE)
  add_library(smelt::report ALIAS smelt_report)
  set_target_properties(smelt_report PROPERTIES EXPORT_NAME report)
  target_link_libraries(smelt_report INTERFACE smelt::host fmt::fmt)
elseif(TARGET smelt_host)
  message(STATUS "smelt: no smelt::report, as fmt was not found (Debian: apt-get install libfmt-dev)")
endif()
