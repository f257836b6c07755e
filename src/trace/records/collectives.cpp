// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kCollectiveFields = fields(seq("seq", &CollectiveRecord::seq),
                                          delta("step", &CollectiveRecord::step),
                                          of_op(&CollectiveRecord::seq),
                                          id("group", &CollectiveRecord::group),
                                          delta("call", &CollectiveRecord::call),
                                          one_of("kind", &CollectiveRecord::kind, CollectiveKind::kBarrier,
                                                 collective_kind_name).as("collective"),
                                          one_of("reduction", &CollectiveRecord::reduction, Reduction::kProduct,
                                                 reduction_name),
                                          plus_one("peer", &CollectiveRecord::peer),
                                          list("ranks.rank", &CollectiveRecord::ranks, Coding::kDelta,
                                               "it has more than 524288 ranks"));

// Before its op, so that a reader knows what that is when it meets it.
bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  const std::uint64_t seq = batch.collectives[row].seq;
  return seq == kNoSeq || seq <= op.seq;
}

}  // namespace

constinit const RecordKind kCollectives =
    field_kind<&RecordBatch::collectives, kCollectiveFields>(
        {.type = 22, .name = "collectives", .retires = Retires::kWithStep, .counted = "collectives",
         .before = before});

}  // namespace nanhunt::trace
