// SPDX-License-Identifier: Apache-2.0
#pragma once

// Before a function that Python calls by its name.
#define NANHUNT_TAP extern "C" __attribute__((visibility("default")))
