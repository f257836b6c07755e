# SPDX-License-Identifier: Apache-2.0
# cmake -DPAGE=page.html -DSTYLES=a.css,b.css -DSCRIPT=page.js|"" -DOUT=page_parts.cpp -P embed.cmake
# Turns the page template, its style and its bundled scripts into a C++ source, with the hashes that let exactly these
# through the content security policy.
string(REPLACE "," ";" STYLES "${STYLES}")
set(style "")
file(READ "${PAGE}" page)
foreach(file IN LISTS STYLES)
  file(READ "${file}" text)
  # The licence line of a file is not part of a user's report.
  string(REGEX REPLACE "^[^\n]*SPDX-License-Identifier[^\n]*\n" "" text "${text}")
  string(APPEND style "${text}")
endforeach()
string(REGEX REPLACE "^[^\n]*SPDX-License-Identifier[^\n]*\n" "" page "${page}")
set(script "")
if(SCRIPT)
  file(READ "${SCRIPT}" script)
endif()

# Hexadecimal to base64: 3 hex digits are 2 base64 characters; 64 = 21 * 3 + 1 digits.
set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
function(hash_of text result)
  string(SHA256 digest "${text}")
  set(base64 "")
  foreach(group RANGE 20)
    math(EXPR at "${group} * 3")
    string(SUBSTRING "${digest}" ${at} 3 hex)
    math(EXPR high "(0x${hex} >> 6) & 63")
    math(EXPR low "0x${hex} & 63")
    string(SUBSTRING "${alphabet}" ${high} 1 first)
    string(SUBSTRING "${alphabet}" ${low} 1 second)
    string(APPEND base64 "${first}${second}")
  endforeach()
  string(SUBSTRING "${digest}" 63 1 hex)
  math(EXPR high "(0x${hex} << 2) & 63")
  string(SUBSTRING "${alphabet}" ${high} 1 first)
  set(${result} "sha256-${base64}${first}=" PARENT_SCOPE)
endfunction()
hash_of("${style}" style_hash)
hash_of("${script}" script_hash)

foreach(text page style script)
  if("${${text}}" MATCHES "\\)embedded\"")
    message(FATAL_ERROR "${text} holds the end of the raw string it is put into")
  endif()
endforeach()
if("${script}" MATCHES "</[sS][cC][rR][iI][pP][tT]|<!--")
  message(FATAL_ERROR "the bundled script holds what would end its element")
endif()
file(CONFIGURE OUTPUT "${OUT}" @ONLY CONTENT [==[
// Made from reports/html by embed.cmake: change the files there.
#include "reports/page/html_page.h"

namespace nanhunt::reports {

const std::string_view kPageTemplate = R"embedded(@page@)embedded";
const std::string_view kPageStyle = R"embedded(@style@)embedded";
const std::string_view kPageStyleHash = "@style_hash@";
const std::string_view kPageScript = R"embedded(@script@)embedded";
const std::string_view kPageScriptHash = "@script_hash@";

}  // namespace nanhunt::reports
]==])
