# SPDX-License-Identifier: Apache-2.0
# NANHUNT_COMMIT: what is built, for `nanhunt --version`: the checkout's, with a + where files were changed since; in a
# source package the one that is written in COMMIT; else unknown. As of the last configuration.
set(NANHUNT_COMMIT "unknown")
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${PROJECT_SOURCE_DIR}" describe --always --exclude=* --abbrev=8 --dirty=+
                  OUTPUT_VARIABLE _described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _status)
  if(_status EQUAL 0)
    set(NANHUNT_COMMIT "${_described}")
  endif()
elseif(EXISTS "${PROJECT_SOURCE_DIR}/COMMIT")
  file(STRINGS "${PROJECT_SOURCE_DIR}/COMMIT" _lines LIMIT_COUNT 1 REGEX "^[0-9a-f]+\\+?$")
  if(_lines)
    set(NANHUNT_COMMIT "${_lines}")
  endif()
endif()
