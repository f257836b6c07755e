# SPDX-License-Identifier: Apache-2.0
# components.txt: what this build holds of others' work, a row for each: name and version. tools/packaging/sbom.py reads it.
set(_rows "commit ${NANHUNT_COMMIT}" "nlohmann_json ${nlohmann_json_VERSION}" "CLI11 ${CLI11_VERSION}")
if(NANHUNT_SELF_CONTAINED)
  list(APPEND _rows "fmt ${fmt_VERSION}" "zstd ${zstd_VERSION}" "products kernels/cpu/products.h")
else()
  list(APPEND _rows "products a BLAS that is linked")
endif()
if(NANHUNT_CHARTS)
  list(APPEND _rows "charts yes")
endif()
list(JOIN _rows "\n" _text)
file(WRITE "${CMAKE_BINARY_DIR}/components.txt" "${_text}\n")
