// SPDX-License-Identifier: Apache-2.0
#include "src/trace/fields.h"

namespace nanhunt::trace {
namespace {

constexpr auto kKernelFields = fields(seq("seq", &KernelRecord::seq),
                                      delta("step", &KernelRecord::step),
                                      of_op(&KernelRecord::seq),
                                      id("name", &KernelRecord::name),
                                      plain("own", &KernelRecord::own),
                                      delta("count", &KernelRecord::count),
                                      delta("timed", &KernelRecord::timed),
                                      zigzag("duration_ns", &KernelRecord::duration_ns, " (volatile)"));

}  // namespace

constinit const RecordKind kKernels =
    field_kind<&RecordBatch::kernels, kKernelFields>(
        {.type = 23, .name = "kernels", .retires = Retires::kWithStep, .counted = "kernel_rows",
         .before = after_its_op<&RecordBatch::kernels>});

}  // namespace nanhunt::trace
