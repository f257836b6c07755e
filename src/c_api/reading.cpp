// SPDX-License-Identifier: Apache-2.0
// The library's own reading of tensors, lent out.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/cpu/checksum.h"
#include "nanhunt/c_adapter.h"
#include "src/c_api/handle.h"
#include "src/record/measure/fp_environment.h"

namespace nanhunt::c_api {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kReadWords = 2;

nanhunt_reading read_one(const TensorView& tensor, std::int32_t what) {
  nanhunt_reading reading{};
  const bool with_norm = (what & NANHUNT_READ_NORM) != 0;
  TensorStats stats;
  if (with_norm) {
    stats = compute_stats(tensor, StatsLevel::kSums);
  } else if (is_floating(tensor.dtype)) {
    stats = compute_stats(tensor, StatsLevel::kFinite);
    if (stats.any_nonfinite) stats = compute_stats(tensor, StatsLevel::kCounts);
  }
  if (stats.nan > 0) reading.bad |= NANHUNT_HAS_NAN;
  if (stats.pos_inf > 0) reading.bad |= NANHUNT_HAS_POS_INF;
  if (stats.neg_inf > 0) reading.bad |= NANHUNT_HAS_NEG_INF;
  if (with_norm) {
    reading.amax = stats.amax;
    reading.norm = stats.nan > 0     ? kNaN
                   : stats.inf() > 0 ? std::numeric_limits<double>::infinity()
                                     : std::sqrt(stats.sum_sq);
  }
  if ((what & NANHUNT_READ_CHECKSUM) != 0) reading.checksum = kernels::checksum_elements(tensor);
  return reading;
}

}  // namespace
}  // namespace nanhunt::c_api

using namespace nanhunt;
using namespace nanhunt::c_api;

extern "C" {

nanhunt_status nanhunt_read(nanhunt_recorder* recorder, const int64_t* values, size_t count, int32_t what,
                            nanhunt_reading* readings, size_t* bad) {
  return recording(recorder, [&](nanhunt_recorder& to) {
    if (bad != nullptr) *bad = 0;
    if (count != 0 && (values == nullptr || readings == nullptr)) {
      throw Misuse("nanhunt_read: expected values and a place for their readings, got NULL");
    }
    if (what < 0 || what > (NANHUNT_READ_NORM | NANHUNT_READ_CHECKSUM)) {
      throw Misuse("nanhunt_read: what: expected 0 to 3, got " + std::to_string(what));
    }
    // All of them are looked at before the first is read.
    for (size_t i = 0; i < count; ++i) {
      const TensorView tensor = to.layouts.tensor("nanhunt_read", values[kReadWords * i], values[kReadWords * i + 1]);
      if (tensor.data == nullptr) throw Misuse("nanhunt_read: value " + std::to_string(i) + " has no data");
    }
    const record::ScopedDefaultFpEnvironment environment;
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) {
      readings[i] = read_one(to.layouts.tensor("", values[kReadWords * i], values[kReadWords * i + 1]), what);
      if (readings[i].bad != 0) ++found;
    }
    if (bad != nullptr) *bad = found;
  });
}

nanhunt_status nanhunt_tensor_stats(const nanhunt_value* value, nanhunt_stats* stats) {
  return checked([&] {
    if (value == nullptr) throw Misuse("nanhunt_tensor_stats: expected a value, got NULL");
    const nanhunt_stats given = sized_copy("nanhunt_tensor_stats", stats);
    Converter converter;
    const TensorView tensor = converter.tensor(*value);
    if (tensor.data == nullptr) throw Misuse("nanhunt_tensor_stats: the value has no data");
    const record::ScopedDefaultFpEnvironment environment;
    const nanhunt_stats all = stats_of(compute_stats(tensor, StatsLevel::kSums), given.struct_size);
    give_back(all, stats);
  });
}

}  // extern "C"
