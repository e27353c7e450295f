# SPDX-License-Identifier: Apache-2.0
#
# Finds liblbfgs (L-BFGS in C) and defines Lbfgs::Lbfgs; sets Lbfgs_FOUND and Lbfgs_LIBRARY. The
# library has no config file of its own.
find_path(Lbfgs_INCLUDE_DIR lbfgs.h)
find_library(Lbfgs_LIBRARY lbfgs)
mark_as_advanced(Lbfgs_INCLUDE_DIR Lbfgs_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Lbfgs
  REQUIRED_VARS Lbfgs_LIBRARY Lbfgs_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "On Debian: apt-get install liblbfgs-dev")

if(Lbfgs_FOUND AND NOT TARGET Lbfgs::Lbfgs)
  add_library(Lbfgs::Lbfgs UNKNOWN IMPORTED)
  set_target_properties(Lbfgs::Lbfgs PROPERTIES IMPORTED_LOCATION "${Lbfgs_LIBRARY}"
                                                INTERFACE_INCLUDE_DIRECTORIES "${Lbfgs_INCLUDE_DIR}")
endif()
