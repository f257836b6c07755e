# SPDX-License-Identifier: Apache-2.0
# Compiles through ccache where it is installed, so that a second clone builds in a fraction of the time. Paths are taken
# relative to the clone, and precompiled headers by their contents.
if(NOT NANHUNT_CCACHE OR DEFINED ENV{CMAKE_CXX_COMPILER_LAUNCHER} OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(NANHUNT_CCACHE_PROGRAM ccache)
mark_as_advanced(NANHUNT_CCACHE_PROGRAM)
if(NOT NANHUNT_CCACHE_PROGRAM)
  return()
endif()
set(_launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${NANHUNT_CCACHE_PROGRAM}")
set(CMAKE_CXX_COMPILER_LAUNCHER "${_launcher}")
set(CMAKE_CUDA_COMPILER_LAUNCHER "${_launcher}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
