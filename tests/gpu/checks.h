// SPDX-License-Identifier: Apache-2.0
// What gpu_kernels can run; each writes rows.
#pragma once

#include "tests/gpu/rows.h"

namespace nanhunt::gpu {

void run_kernel_checks(Rows& rows, bool quick);  // quick: as much as stands a tool that slows it a hundredfold
void run_large_checks(Rows& rows);
void run_checksum_stats_checks(Rows& rows, bool quick);
void run_kernel_bench(Rows& rows);
void run_checksum_stats_bench(Rows& rows);

}  // namespace nanhunt::gpu
