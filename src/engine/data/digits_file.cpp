// SPDX-License-Identifier: Apache-2.0
// digits.csv as read-only bytes of the library, put there by the assembler: no parsing cost for the compiler, and
// binaries work wherever they are copied. The build says where the file is (CMakeLists.txt).
#include "nanhunt/engine/data.h"

__asm__(
    ".section .rodata.nanhunt_digits,\"a\",@progbits\n"
    ".hidden nanhunt_digits_csv_begin\n"
    ".hidden nanhunt_digits_csv_end\n"
    ".global nanhunt_digits_csv_begin\n"
    ".global nanhunt_digits_csv_end\n"
    "nanhunt_digits_csv_begin:\n"
    ".incbin \"" NANHUNT_DIGITS_CSV
    "\"\n"
    "nanhunt_digits_csv_end:\n"
    ".byte 0\n"
    ".text\n");

extern "C" {
__attribute__((visibility("hidden"))) extern const char nanhunt_digits_csv_begin[];
__attribute__((visibility("hidden"))) extern const char nanhunt_digits_csv_end[];
}

namespace nanhunt::engine {

std::string_view digits_csv() {
  return {nanhunt_digits_csv_begin, static_cast<std::size_t>(nanhunt_digits_csv_end - nanhunt_digits_csv_begin)};
}

}  // namespace nanhunt::engine
