// SPDX-License-Identifier: Apache-2.0
// text.txt as read-only bytes of the library, as digits_file.cpp does with the digits.
#include "nanhunt/engine/data.h"

__asm__(
    ".section .rodata.nanhunt_text,\"a\",@progbits\n"
    ".hidden nanhunt_text_begin\n"
    ".hidden nanhunt_text_end\n"
    ".global nanhunt_text_begin\n"
    ".global nanhunt_text_end\n"
    "nanhunt_text_begin:\n"
    ".incbin \"" NANHUNT_TEXT_FILE
    "\"\n"
    "nanhunt_text_end:\n"
    ".byte 0\n"
    ".text\n");

extern "C" {
__attribute__((visibility("hidden"))) extern const char nanhunt_text_begin[];
__attribute__((visibility("hidden"))) extern const char nanhunt_text_end[];
}

namespace nanhunt::engine {

std::string_view text_file() {
  return {nanhunt_text_begin, static_cast<std::size_t>(nanhunt_text_end - nanhunt_text_begin)};
}

}  // namespace nanhunt::engine
