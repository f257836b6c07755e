# SPDX-License-Identifier: Apache-2.0
# Everything outside the project, found and never downloaded. tools/setup installs what is missing.

find_package(Threads REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(zstd CONFIG REQUIRED)
find_package(BLAS REQUIRED)
find_path(NANHUNT_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu openblas-pthread x86_64-linux-gnu/openblas-pthread REQUIRED)

# Debian's zstd config has no plain zstd::libzstd: take whichever exists.
add_library(nanhunt_dep_zstd INTERFACE)
if(TARGET zstd::libzstd_shared)
  target_link_libraries(nanhunt_dep_zstd INTERFACE zstd::libzstd_shared)
else()
  target_link_libraries(nanhunt_dep_zstd INTERFACE zstd::libzstd_static)
endif()

add_library(nanhunt_dep_blas INTERFACE)
target_link_libraries(nanhunt_dep_blas INTERFACE BLAS::BLAS)
target_include_directories(nanhunt_dep_blas SYSTEM INTERFACE "${NANHUNT_CBLAS_INCLUDE}")

if(NANHUNT_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
if(NANHUNT_BENCHMARKS)
  find_package(benchmark CONFIG REQUIRED)
endif()

# CUDA: AUTO takes it when both a compiler and the toolkit's libraries are there.
set(NANHUNT_WITH_CUDA OFF)
if(NOT NANHUNT_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-real 90-real)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(NANHUNT_WITH_CUDA ON)
  elseif(NANHUNT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "NANHUNT_CUDA=ON, but no CUDA compiler was found. Put nvcc on PATH or set CUDACXX, or use NANHUNT_CUDA=AUTO.")
  endif()
endif()
message(STATUS "nanhunt: CUDA backend ${NANHUNT_WITH_CUDA} (NANHUNT_CUDA=${NANHUNT_CUDA})")
