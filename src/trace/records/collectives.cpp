// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = CollectiveRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               id("group", &Row::group),
                               delta("call", &Row::call),
                               one_of("kind", &Row::kind, CollectiveKind::kBarrier),
                               one_of("reduction", &Row::reduction, Reduction::kProduct),
                               plus_one("peer", &Row::peer),
                               list("ranks.rank", &Row::ranks, Coding::kDelta, "it has more than 524288 ranks"));

// Before its op, so that a reader knows what that is when it meets it.
bool before(const RecordBatch& batch, std::size_t row, const OpRecord& op) {
  const std::uint64_t seq = batch.collectives[row].seq;
  return seq == kNoSeq || seq <= op.seq;
}

}  // namespace

constinit const RecordKind kCollectives =
    field_kind<&RecordBatch::collectives, kFields>({.type = 22, .name = "collectives", .before = before});

}  // namespace nanhunt::trace
