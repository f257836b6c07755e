// SPDX-License-Identifier: Apache-2.0
// Figures that a program computes and does not train with: of a validation, or beside its models between two steps.
#pragma once

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

bool is_of_model(const Case& c);

// Computed beside training and its models, and used for nothing but a figure: what a validation computes by itself.
bool is_beside_training(const Birth& birth);

// A figure that is computed beside training, or one of a validation that is made of finite single numbers, and of which
// nothing else was made: the precision of a class that it lacks, the perplexity of a large loss. The loss itself is made of
// more.
bool is_figure(const Case& c);

}  // namespace nanhunt::analyze
