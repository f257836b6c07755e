// SPDX-License-Identifier: Apache-2.0
// Not guarded: included once by each path, with NANHUNT_VECTOR_BYTES set to the width of its registers and its
// instructions switched on. Vectors are the compiler's, so every path is the same code. No contraction: a product and
// a sum round apart, with and without FMA instructions.
namespace nanhunt::kernels {
namespace {

typedef float Floats __attribute__((vector_size(NANHUNT_VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(NANHUNT_VECTOR_BYTES)));

// Two registers for each row of the tile; not a template, which would be compiled for other instructions than these.
#define NANHUNT_TILE(name, Number, Numbers)                                          \
  void name(const Number* a, const Number* b, std::size_t count, Number* sums) {     \
    constexpr std::size_t kWidth = sizeof(Numbers) / sizeof(Number);                 \
    Numbers low[kTileRows] = {}, high[kTileRows] = {};                               \
    for (std::size_t p = 0; p < count; ++p, a += kTileRows, b += 2 * kWidth) {       \
      Numbers left, right;                                                           \
      std::memcpy(&left, b, sizeof(left));                                           \
      std::memcpy(&right, b + kWidth, sizeof(right));                                \
      for (std::size_t i = 0; i < kTileRows; ++i) {                                  \
        low[i] += a[i] * left;                                                       \
        high[i] += a[i] * right;                                                     \
      }                                                                              \
    }                                                                                \
    for (std::size_t i = 0; i < kTileRows; ++i) {                                    \
      std::memcpy(sums + 2 * kWidth * i, &low[i], sizeof(low[i]));                   \
      std::memcpy(sums + 2 * kWidth * i + kWidth, &high[i], sizeof(high[i]));        \
    }                                                                                \
  }

NANHUNT_TILE(tile_f32, float, Floats)
NANHUNT_TILE(tile_f64, double, Doubles)

constexpr ProductPath kPath = {2 * NANHUNT_VECTOR_BYTES, tile_f32, tile_f64};

}  // namespace
}  // namespace nanhunt::kernels

#undef NANHUNT_TILE
#undef NANHUNT_VECTOR_BYTES
