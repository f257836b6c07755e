// SPDX-License-Identifier: Apache-2.0
// What to do about it. Ids are stable and shared with the experiments of src/hunt.
#pragma once

#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

Advice make_advice(std::string_view id);  // an id that is not in the table is its own text
// The constant that an op's own format holds, where the text names one of fp16.
void fit_to_format(Advice& advice, DType stored);
// How an op is run in fp32 where the program `autocasts`, and inside of a backward that the program wrote itself.
void fit_to_autocast(Finding& finding, bool autocasts);
// What came of it when it was tried on the numbers that the op read. `what`: "CHANGE; SCOPE".
void add_trial(Advice& advice, const ProbeRecord& trial, std::string_view what);
// Where the advice stands among others: as if tried on these numbers, where it is known from how they were made (a lower
// init_scale, and the form of its own of a softmax, a sigmoid or a sum of exponentials under a logarithm).
Tried order_of(const Advice& advice);
// What worked, what holds on these numbers, what was not tried, what failed.
void put_tried_first(std::vector<Advice>& advice);
// For a run of another framework: formulas instead of its functions.
void name_no_functions_of_pytorch(std::vector<Finding>& findings);
Advice manual_cast_advice(DType dtype);   // against parameters or results that were cast to it by hand

// Says of each piece of advice whether it was tried on this run and what came of it. The headline finding also gets
// what was tried beyond its advice. Verified first, disproved last.
void add_experiments(std::vector<Finding>& findings, const std::vector<ExperimentRecord>& experiments);

}  // namespace nanhunt::analyze
