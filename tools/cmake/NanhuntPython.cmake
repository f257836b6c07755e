# SPDX-License-Identifier: Apache-2.0
# The Python package (hooks/torch/nanhunt): live in the build tree, in what `cmake --install` puts down, in a wheel.
# Library and command line tool find it, and it them, by where they are to each other.
set(_package "${PROJECT_SOURCE_DIR}/hooks/torch/nanhunt")

# The sources of the tap, which is compiled where it is used, for the PyTorch that is there.
function(_install_tap_sources to)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/hooks/torch/tap" DESTINATION "${to}/tap/hooks/torch" COMPONENT python
          FILES_MATCHING PATTERN "*.h" PATTERN "*.cpp")
  install(FILES "${PROJECT_SOURCE_DIR}/include/nanhunt/c_api.h" "${PROJECT_SOURCE_DIR}/include/nanhunt/c_adapter.h"
          DESTINATION "${to}/tap/include/nanhunt" COMPONENT python)
endfunction()

# Taps that are ready made, for the PyTorch of each of these Pythons. Without the option a wheel gets the one for the Python
# that builds it, where that has PyTorch; whoever names a Python wants its tap.
set(NANHUNT_TAPS "" CACHE PATH "Folder with taps (tools/build_taps) that go into the package; then none is built")
set(NANHUNT_TAP_PYTHONS "" CACHE STRING "Pythons (python1;python2) whose PyTorch gets a tap that is built now")
set(_build_taps_tool "${PROJECT_SOURCE_DIR}/tools/build_taps")
set(_taps "${CMAKE_BINARY_DIR}/taps")
if(NANHUNT_TAPS)
  set(_taps "${NANHUNT_TAPS}")
endif()
function(_install_taps to)
  install(DIRECTORY "${_taps}/" DESTINATION "${to}" COMPONENT python USE_SOURCE_PERMISSIONS FILES_MATCHING PATTERN "tap-*.so" PATTERN "taps.json")
endfunction()
function(_build_taps to)
  if(NANHUNT_TAPS)
    if(NOT EXISTS "${NANHUNT_TAPS}/taps.json")
      message(FATAL_ERROR "NANHUNT_TAPS: ${NANHUNT_TAPS}/taps.json is not there. tools/build_taps writes it.")
    endif()
    _install_taps("${to}")
    return()
  endif()
  set(_commands "")
  foreach(_python IN LISTS NANHUNT_TAP_PYTHONS)
    list(APPEND _commands COMMAND "${_python}" "${_build_taps_tool}" "${_taps}" installed)
  endforeach()
  if(SKBUILD AND NOT NANHUNT_TAP_PYTHONS)
    # pip builds apart from the environment's packages, by PYTHONPATH: -E looks past it.
    find_package(Python COMPONENTS Interpreter)
    if(Python_FOUND)
      set(_commands COMMAND "${Python_EXECUTABLE}" "${_build_taps_tool}" "${_taps}" installed ||
                            "${Python_EXECUTABLE}" -E "${_build_taps_tool}" "${_taps}" installed ||
                            "${CMAKE_COMMAND}" -E echo "nanhunt: the tap is compiled at first use")
    endif()
  endif()
  if(_commands)
    add_custom_target(nanhunt_taps ALL COMMAND "${CMAKE_COMMAND}" -E rm -rf "${_taps}" COMMAND "${CMAKE_COMMAND}" -E make_directory "${_taps}" ${_commands} VERBATIM)
    _install_taps("${to}")
  endif()
endfunction()

# What is inside, with versions and licences (PEP 770); from the facts that the build wrote of itself.
function(_install_sbom facts)
  find_package(Python COMPONENTS Interpreter)
  if(NOT Python_FOUND OR (NANHUNT_PREBUILT AND NOT EXISTS "${facts}"))
    message(STATUS "nanhunt: the wheel gets no list of what is inside: no Python, or the build has no components.txt")
    return()
  endif()
  set(_sbom "${CMAKE_BINARY_DIR}/nanhunt.cdx.json")
  add_custom_target(nanhunt_sbom ALL VERBATIM COMMAND "${Python_EXECUTABLE}" -E "${PROJECT_SOURCE_DIR}/tools/packaging/sbom.py"
    "${PROJECT_VERSION}" "${facts}" "${_taps}" "${_sbom}")
  if(TARGET nanhunt_taps)
    add_dependencies(nanhunt_sbom nanhunt_taps)
  endif()
  install(FILES "${_sbom}" DESTINATION "${SKBUILD_METADATA_DIR}/sboms" COMPONENT python)
endfunction()

if(SKBUILD)
  # A wheel holds one file per library, no links; scikit-build-core adds the Python files.
  if(NANHUNT_PREBUILT)
    set(_program "${NANHUNT_PREBUILT}/bin/nanhunt")
    set(_library "${NANHUNT_PREBUILT}/lib/libnanhunt.so")
    foreach(_file IN ITEMS "${_program}" "${_library}")
      if(NOT EXISTS "${_file}")
        message(FATAL_ERROR "NANHUNT_PREBUILT: ${_file} is not there. Build nanhunt and nanhunt_c_api first.")
      endif()
      # What it links to says where the file itself is.
      file(REAL_PATH "${_file}" _real)
      if(_file STREQUAL _library)
        set(_library "${_real}")
      endif()
    endforeach()
  else()
    set(_program "$<TARGET_FILE:nanhunt>")
    set(_library "$<TARGET_FILE:nanhunt_c_api>")
  endif()
  install(PROGRAMS "${_program}" DESTINATION bin COMPONENT python)
  install(PROGRAMS "${_library}" DESTINATION lib RENAME libnanhunt.so COMPONENT python)
  _install_tap_sources(".")
  _build_taps(lib)
  if(NANHUNT_PREBUILT)
    _install_sbom("${NANHUNT_PREBUILT}/components.txt")
  else()
    _install_sbom("${CMAKE_BINARY_DIR}/components.txt")
  endif()
  return()
endif()

file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/python")
file(CREATE_LINK "${_package}" "${CMAKE_BINARY_DIR}/python/nanhunt" SYMBOLIC)

include(GNUInstallDirs)
set(_installed "lib/nanhunt/python")  # not LIBDIR: the command line tool looks there
install(DIRECTORY "${_package}" DESTINATION "${_installed}" COMPONENT python PATTERN "__pycache__" EXCLUDE)
_install_tap_sources("${_installed}/nanhunt")
_build_taps("${_installed}/nanhunt/lib")
install(PROGRAMS "$<TARGET_FILE:nanhunt_c_api>" DESTINATION "${_installed}/nanhunt/lib"
        RENAME libnanhunt.so COMPONENT python)
