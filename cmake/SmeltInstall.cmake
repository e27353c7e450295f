# SPDX-License-Identifier: Apache-2.0
#
# cmake --install: the headers and a package for find_package(smelt [COMPONENTS host cuda mpi nccl report law]).
# Each component is a file of targets of its own, so that a user of the types is never asked for
# OpenMP, oneDNN, CUDA, MPI, NCCL, fmt or liblbfgs.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(smelt_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/smelt")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

foreach(component smelt host cuda mpi nccl report law)
  set(target smelt_${component})
  if(component STREQUAL "smelt")
    set(target smelt)
  endif()
  if(TARGET ${target})
    install(TARGETS ${target} EXPORT smelt-${component})
    install(EXPORT smelt-${component} NAMESPACE smelt:: DESTINATION "${smelt_package_dir}")
  endif()
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindLbfgs.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindNccl.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindOpenBLAS.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/SmeltCuda20.cmake" DESTINATION "${smelt_package_dir}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/smelt-config.cmake.in"
  "${PROJECT_BINARY_DIR}/smelt-config.cmake" INSTALL_DESTINATION "${smelt_package_dir}"
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break; headers alone fit every architecture.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/smelt-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/smelt-config.cmake"
              "${PROJECT_BINARY_DIR}/smelt-config-version.cmake"
        DESTINATION "${smelt_package_dir}")
