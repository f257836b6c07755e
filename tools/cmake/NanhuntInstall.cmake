# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts down: the command line tool, libnanhunt.so for C, and the C++ libraries that a training
# loop embeds. find_package(nanhunt) then offers nanhunt::c_api and nanhunt::nanhunt.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(nanhunt_nanhunt INTERFACE)
target_link_libraries(nanhunt_nanhunt INTERFACE nanhunt_record nanhunt_analyze nanhunt_reports)
set_target_properties(nanhunt_nanhunt PROPERTIES EXPORT_NAME nanhunt)

install(TARGETS nanhunt RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
if(TARGET nanhunt_mpi) # beside the program, which loads it
  install(TARGETS nanhunt_mpi LIBRARY DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
install(TARGETS nanhunt_c_api nanhunt_nanhunt nanhunt_core nanhunt_kernels nanhunt_trace nanhunt_record nanhunt_analyze
                nanhunt_reports nanhunt_dep_zstd
        EXPORT nanhunt
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES include/nanhunt/analyzer.h include/nanhunt/lr_range.h include/nanhunt/c_adapter.h include/nanhunt/c_api.h include/nanhunt/dtype.h
              include/nanhunt/event.h include/nanhunt/recorder.h include/nanhunt/reporter.h include/nanhunt/status.h
              include/nanhunt/tensor_stats.h include/nanhunt/tensor_view.h include/nanhunt/trace.h
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/nanhunt")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/nanhunt")
install(EXPORT nanhunt NAMESPACE nanhunt:: FILE nanhunt-targets.cmake DESTINATION "${package_dir}")
configure_package_config_file(tools/cmake/nanhunt-config.cmake.in "${PROJECT_BINARY_DIR}/nanhunt-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/nanhunt-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/nanhunt-config.cmake" "${PROJECT_BINARY_DIR}/nanhunt-config-version.cmake"
        DESTINATION "${package_dir}")
