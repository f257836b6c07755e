// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

// fp64 subnormals reach 2^-1074, its largest numbers 2^1023.
constexpr std::size_t kMaxBins = 2098;

constexpr auto kHistogramFields = fields(seq("seq", &HistogramRecord::seq),
                                         of_op(&HistogramRecord::seq),
                                         value("value", &HistogramRecord::value),
                                         zigzag_within("min_exponent", &HistogramRecord::min_exponent, 1074,
                                         {"its first exponent is outside -1074..1074", "", ""},
                                         " (-1074 to 1074)"),
                                         list("bins.bin", &HistogramRecord::bins, Coding::kPlain,
                                              "it has more than 2098 bins", kMaxBins,
                                         " (at most 2098)"));

}  // namespace

constinit const RecordKind kHistograms =
    field_kind<&RecordBatch::histograms, kHistogramFields>(
        {.type = kHistogramsType, .name = "histograms", .retires = Retires::kWithOp, .table_cell = "step",
         .before = after_its_op<&RecordBatch::histograms>});

}  // namespace nanhunt::trace
