// SPDX-License-Identifier: Apache-2.0
// Figures that a program computes and does not train with: of a validation, or beside its models between two steps.
#pragma once

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

bool is_of_model(const Case& c);

// Computed beside training and its models, and used for nothing but a figure: what a validation computes by itself.
bool is_beside(const Birth& birth);

// A figure of a validation, made of finite single numbers, of which nothing else was made: the precision of a class that
// it lacks, the perplexity of a large loss. The loss itself is made of more.
bool is_figure(const Case& c);

}  // namespace nanhunt::analyze
