# SPDX-License-Identifier: Apache-2.0
# Flags and helpers shared by every target. Sources are listed by the callers, never globbed.

add_library(nanhunt_flags INTERFACE)
target_compile_features(nanhunt_flags INTERFACE cxx_std_20)
# No contraction: a*b+c rounds twice everywhere, so results do not depend on the machine. Never -ffast-math.
target_compile_options(nanhunt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -ffp-contract=off>)
# gcc 12 at -O3 takes members of moved-from aggregates for uninitialised.
target_compile_options(nanhunt_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
# One translation unit of many files (CMAKE_UNITY_BUILD) is no header.
if(CMAKE_UNITY_BUILD)
  target_compile_options(nanhunt_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
# Device code keeps to the same rule; its host half is compiled like the rest.
target_compile_options(nanhunt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;-Xcompiler=-ffp-contract=off>)
if(NANHUNT_WERROR)
  target_compile_options(nanhunt_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(NANHUNT_SELF_CONTAINED) # and small: what nobody calls is left out
  target_compile_options(nanhunt_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections;-fdata-sections>)
  add_link_options(-Wl,--gc-sections -s)
endif()
if(NANHUNT_SANITIZE)
  target_compile_options(nanhunt_flags INTERFACE -fsanitize=${NANHUNT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nanhunt_flags INTERFACE -fsanitize=${NANHUNT_SANITIZE})
endif()

# nanhunt_layer(NAME [OPTIMISE FLAG] SOURCES ... DEPS ... [PRIVATE_DEPS ...]): library target nanhunt_NAME, alias nanhunt::NAME.
# OPTIMISE: what release code of it is compiled with where that is not -O3: what only words and prints builds sooner.
# Includes are written from the repository root ("src/trace/encoding/chunk.h") or from include/ ("nanhunt/trace.h").
function(nanhunt_layer name)
  cmake_parse_arguments(ARG "" "OPTIMISE" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(nanhunt_${name} STATIC ${ARG_SOURCES})
  add_library(nanhunt::${name} ALIAS nanhunt_${name})
  target_include_directories(nanhunt_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:include>")
  target_link_libraries(nanhunt_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} "$<BUILD_INTERFACE:nanhunt_flags>")
  if(ARG_OPTIMISE)
    target_compile_options(nanhunt_${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${ARG_OPTIMISE}>)
  endif()
  set_target_properties(nanhunt_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
endfunction()

# nanhunt_test(NAME SOURCES ... DEPS ... [EACH]): executable NAME_tests; each of its suites is one ctest, with EACH
# (cases that take seconds, or must have a process of their own) each of its cases.
function(nanhunt_test name)
  cmake_parse_arguments(ARG "EACH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_tests ${ARG_SOURCES})
  target_link_libraries(${name}_tests PRIVATE ${ARG_DEPS} nanhunt_flags GTest::gmock GTest::gtest_main)
  # Test code gains nothing from a long optimisation; what it tests keeps the preset's.
  target_compile_options(${name}_tests PRIVATE -O1)
  target_precompile_headers(${name}_tests PRIVATE <gtest/gtest.h> <string> <vector>)
  target_compile_definitions(${name}_tests PRIVATE
    NANHUNT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" NANHUNT_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  # Ends what hangs, however slow the machine; ThreadSanitizer makes training some twenty times slower.
  if(NANHUNT_SANITIZE)
    set(limit 7200)
  else()
    set(limit 1800)
  endif()
  set(listed "${CMAKE_CURRENT_BINARY_DIR}/${name}_tests.cmake")
  set(lister "${PROJECT_SOURCE_DIR}/tools/cmake/NanhuntDiscoverTests.cmake")
  add_custom_command(TARGET ${name}_tests POST_BUILD VERBATIM COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:${name}_tests>"
    -DPREFIX=${name} -DEACH=${ARG_EACH} -DLIMIT=${limit} "-DOUTPUT=${PROJECT_BINARY_DIR}/results/gtest" "-DCTEST_FILE=${listed}" -P "${lister}")
  set_property(TARGET ${name}_tests APPEND PROPERTY LINK_DEPENDS "${lister}")
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${name}_tests_include.cmake")
  file(WRITE "${include}" "if(EXISTS \"${listed}\")\n  include(\"${listed}\")\nelse()\n  add_test(${name}_tests_NOT_BUILT ${name}_tests_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
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
