# SPDX-License-Identifier: Apache-2.0
# Flags and helpers shared by every target. Sources are listed by the callers, never globbed.

add_library(nanhunt_flags INTERFACE)
target_compile_features(nanhunt_flags INTERFACE cxx_std_20)
# No contraction: a*b+c rounds twice everywhere, so results do not depend on the machine. Never -ffast-math.
target_compile_options(nanhunt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off>)
# gcc 12 at -O3 takes members of moved-from aggregates for uninitialised.
target_compile_options(nanhunt_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
# Device code keeps to the same rule; its host half is compiled like the rest.
target_compile_options(nanhunt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;-Xcompiler=-ffp-contract=off>)
if(NANHUNT_WERROR)
  target_compile_options(nanhunt_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(NANHUNT_SANITIZE)
  target_compile_options(nanhunt_flags INTERFACE -fsanitize=${NANHUNT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nanhunt_flags INTERFACE -fsanitize=${NANHUNT_SANITIZE})
endif()

# nanhunt_layer(NAME SOURCES ... DEPS ... [PRIVATE_DEPS ...]): library target nanhunt_NAME, alias nanhunt::NAME.
# Includes are written from the repository root ("src/trace/encoding/chunk.h") or from include/ ("nanhunt/trace.h").
function(nanhunt_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(nanhunt_${name} STATIC ${ARG_SOURCES})
  add_library(nanhunt::${name} ALIAS nanhunt_${name})
  target_include_directories(nanhunt_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include>")
  target_link_libraries(nanhunt_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} "$<BUILD_INTERFACE:nanhunt_flags>")
  set_target_properties(nanhunt_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
endfunction()

# nanhunt_test(NAME SOURCES ... DEPS ...): executable NAME_tests; each of its cases is one ctest.
function(nanhunt_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_tests ${ARG_SOURCES})
  target_link_libraries(${name}_tests PRIVATE ${ARG_DEPS} nanhunt_flags GTest::gmock GTest::gtest_main)
  # Test code gains nothing from a long optimisation; what it tests keeps the preset's.
  target_compile_options(${name}_tests PRIVATE -O1)
  target_precompile_headers(${name}_tests PRIVATE <gtest/gtest.h> <string> <vector>)
  target_compile_definitions(${name}_tests PRIVATE
    NANHUNT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" NANHUNT_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  # ThreadSanitizer makes training some twenty times slower.
  if(NANHUNT_SANITIZE)
    set(limit 1200)
  else()
    set(limit 300)
  endif()
  gtest_discover_tests(${name}_tests TEST_PREFIX "${name}/" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${limit})
endfunction()

# nanhunt_bench(NAME SOURCES ... DEPS ...): executable NAME_bench (Google Benchmark).
function(nanhunt_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT NANHUNT_BENCHMARKS)
    return()
  endif()
  add_executable(${name}_bench ${ARG_SOURCES})
  target_link_libraries(${name}_bench PRIVATE ${ARG_DEPS} nanhunt_flags benchmark::benchmark_main)
endfunction()
