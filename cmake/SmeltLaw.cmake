# SPDX-License-Identifier: Apache-2.0
#
# smelt::law: scaling laws, which know nothing but numbers: liblbfgs and threads. Where liblbfgs is
# missing there is no target: ask with if(TARGET smelt::law) and say so, rather than fail.
find_package(Lbfgs QUIET)
find_package(Threads QUIET)
if(Lbfgs_FOUND AND Threads_FOUND)
  add_library(smelt_law INTERFACE)
  add_library(smelt::law ALIAS smelt_law)
  set_target_properties(smelt_law PROPERTIES EXPORT_NAME law)
  target_link_libraries(smelt_law INTERFACE smelt::smelt Threads::Threads Lbfgs::Lbfgs)
else()
  message(STATUS "smelt: no smelt::law, as liblbfgs was not found (Debian: apt-get install liblbfgs-dev)")
endif()
