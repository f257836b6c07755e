// SPDX-License-Identifier: Apache-2.0
// A rule says which class an origin belongs to and why, in words with numbers. One file each; the order is
// registry.cpp's.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

struct Diagnosis {
  std::string title;                  // one sentence: what happened where
  std::string cause;                  // in a few words: "0/0"; "": those of the class
  std::string part_of{};              // what the op computes a part of: "logdet"; "": it is called itself
  std::string explanation;            // a few sentences: why
  std::vector<std::string> evidence;  // sentences with numbers
  std::vector<std::string> advice;    // ids, best first; src/analyze/wording/advice.cpp
  std::vector<std::pair<std::string, std::string>> why{};  // of an id in `advice`, where the table's words do not fit
  bool sure = true;                   // false: the records fit, but something else would fit too
};

struct Rule {
  FindingClass cls;
  std::optional<Diagnosis> (*diagnose)(const Case&);  // nullopt: not this class
};

std::span<const Rule> all_rules();  // first match wins; the last always matches

// Words several rules use.
std::string made_text(const Case& c);                         // "addcdiv_ made 600 NaN and 40 Inf of 2048"
std::string pole_words(const Case& c);                        // "0/0", "log of 0", "sqrt has no finite derivative at 0"
std::string derivative_text(const Case& c);  // "the derivative of sqrt", of which the op is a part; "": of none
std::string pole_count_text(const Case& c);                   // "tensor2 holds 640 zeros of 2048"
std::string arg_text(const Case& c, const ArgSnapshot& arg);  // "tensor1 (fc1.weight.exp_avg)"
std::string range_text(const Case& c);  // "Finite inputs; largest magnitudes: self 131, mat2 4.2."
const OpSnapshot* maker_of(const Case& c, const ArgSnapshot& arg);  // nullptr: the walk back did not come to it
bool is_square(const Case& c, const OpSnapshot& op);
const OpSnapshot* lost_exponentials(const Case& c);  // the op whose results are 0, for their exponents are too small
bool adds_masks(const Case& c);  // of the format's lowest number, to each other
void add_if(std::vector<std::string>& lines, std::string line);  // unless it is empty
bool divides_by_number_0(const Case& c);                         // by one of the program's own
std::vector<std::string> denominator_advice(const Case& c);
// Of a pole that a rounded limit of a clamp leads to; nullopt: none does.
std::optional<Diagnosis> diagnose_rounded_bound(const Case& c);
// Says of NaN from outside of the arithmetic that a mask was to take it away by a product, where one was seen.
void add_mask(Diagnosis& d, const Case& c);

}  // namespace nanhunt::analyze
