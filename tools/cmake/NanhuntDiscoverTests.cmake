# SPDX-License-Identifier: Apache-2.0
# Run as a script after a test program was linked: asks it for its cases and writes CTEST_FILE, which ctest includes.
# One ctest for each suite of cases (EACH: for each case), named PREFIX/SUITE; it leaves OUTPUT/PREFIX.SUITE.xml, a row
# for each case, which tools/summarize_tests.py counts.
execute_process(COMMAND "${PROGRAM}" --gtest_list_tests TIMEOUT 600 OUTPUT_VARIABLE listed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} does not list its tests (${status}):\n${listed}")
endif()

set(script "")
function(add_one name filter)
  string(REPLACE "/" "." file "${name}")
  string(APPEND script "add_test([==[${PREFIX}/${name}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${filter}]==]"
    " [==[--gtest_output=xml:${OUTPUT}/${PREFIX}.${file}.xml]==])\n"
    "set_tests_properties([==[${PREFIX}/${name}]==] PROPERTIES TIMEOUT ${LIMIT})\n")
  if(EACH) # a suite that skips one case may fail in another
    string(APPEND script
      "set_tests_properties([==[${PREFIX}/${name}]==] PROPERTIES SKIP_REGULAR_EXPRESSION \"\\\\[  SKIPPED \\\\]\")\n")
  endif()
  set(script "${script}" PARENT_SCOPE)
endfunction()

# "Suite.  # TypeParam = T" begins a suite, "  case  # GetParam() = V" is one of its cases.
string(REGEX REPLACE "[][;]" "_" listed "${listed}")
string(REPLACE "\n" ";" listed "${listed}")
foreach(line IN LISTS listed)
  string(REGEX REPLACE " *#.*" "" name "${line}")
  if(name MATCHES "^  (.+)$")
    if(EACH)
      add_one("${suite}.${CMAKE_MATCH_1}" "${suite}.${CMAKE_MATCH_1}")
    endif()
  elseif(name MATCHES "^([A-Za-z0-9_/]+)\\.$")
    set(suite "${CMAKE_MATCH_1}")
    if(NOT EACH)
      add_one("${suite}" "${suite}.*")
    endif()
  endif()
endforeach()
file(WRITE "${CTEST_FILE}" "${script}")
