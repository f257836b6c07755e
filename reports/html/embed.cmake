# SPDX-License-Identifier: Apache-2.0
# cmake -DPAGE=page.html -DSTYLE=report.css -DOUT=page_parts.cpp -P embed.cmake
# Turns the page template and its style into a C++ source, with the hash that lets exactly this style
# through the content security policy.
file(READ "${PAGE}" page)
file(READ "${STYLE}" style)
# The licence line of these files is not part of a user's report.
string(REGEX REPLACE "^[^\n]*SPDX-License-Identifier[^\n]*\n" "" page "${page}")
string(REGEX REPLACE "^[^\n]*SPDX-License-Identifier[^\n]*\n" "" style "${style}")
string(SHA256 digest "${style}")

# Hexadecimal to base64: 3 hex digits are 2 base64 characters; 64 = 21 * 3 + 1 digits.
set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
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
string(APPEND base64 "${first}=")

foreach(text page style)
  if("${${text}}" MATCHES "\\)embedded\"")
    message(FATAL_ERROR "${text} holds the end of the raw string it is put into")
  endif()
endforeach()
file(CONFIGURE OUTPUT "${OUT}" @ONLY CONTENT [==[
// Made from reports/html by embed.cmake: change the files there.
#include "reports/html_page.h"

namespace nanhunt::reports {

const std::string_view kPageTemplate = R"embedded(@page@)embedded";
const std::string_view kPageStyle = R"embedded(@style@)embedded";
const std::string_view kPageStyleHash = "sha256-@base64@";

}  // namespace nanhunt::reports
]==])
