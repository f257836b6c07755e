// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

using Row = KernelRecord;

constexpr auto kFields = fields(delta("seq", &Row::seq),
                               delta("step", &Row::step),
                               id("name", &Row::name),
                               plain("own", &Row::own),
                               delta("count", &Row::count),
                               delta("timed", &Row::timed),
                               zigzag("duration_ns", &Row::duration_ns, " (volatile)"));

}  // namespace

constinit const RecordKind kKernels =
    field_kind<&RecordBatch::kernels, kFields>(
        {.type = 23, .name = "kernels", .before = after_its_op<&RecordBatch::kernels>});

}  // namespace nanhunt::trace
