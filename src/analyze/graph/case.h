// SPDX-License-Identifier: Apache-2.0
// One origin with everything the rules need to name its class, worked out once.
#pragma once

#include <string>
#include <vector>

#include "src/analyze/graph/birth.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/graph/call.h"
#include "src/analyze/graph/zero_walk.h"

namespace nanhunt::analyze {

// Why an op has no finite answer for some element, as far as the op table and the records tell.
enum class Singular : std::uint8_t {
  kNone,
  kPole,     // 1/0, 0/0, log 0, infinite derivative, mean over nothing
  kOutside,  // argument outside the domain
};

struct Case {
  const Birth& birth;
  Names& names;
  std::vector<const EvidenceRecord*> elements{};  // of the origin op, lowest index first

  // Only for births at an op; defaults elsewhere.
  const OriginContext* context = nullptr;
  const OpInfo* info = nullptr;
  const ArgSnapshot* output = nullptr;  // the first bad one
  DType stored = DType::kF32;           // its format
  const ArgSnapshot* pole = nullptr;    // the argument that can be singular
  Singular singular = Singular::kNone;
  ZeroOrigin zero{};  // where the pole's zeros come from
  RoundedBound bound{};             // a limit of a clamp that became the singular number
  const CallStory* call = nullptr;  // the call between ranks that it is, where the ranks were put together

  bool is_op() const { return context != nullptr; }
  const std::string& text(StringId id) const { return names.text(id); }
  std::string name_of(const ArgSnapshot& arg) const { return arg_name(arg, names); }
  const std::string& op() const { return names.text(birth.at.op); }
  bool reaches_training() const;  // the loss, gradients or what lasts: more than what a forward gave
  const std::string& module() const { return names.text(birth.at.module); }
  bool in_optimizer() const { return birth.at.phase == Phase::kOptimizer; }
  // "in fc1", "in the update of fc1.weight", "" when no module is known.
  std::string where() const;
  // Of the origin op. nullptr: it has none of that name.
  const ScalarSnapshot* scalar(std::string_view name) const;
  const ArgSnapshot* input(std::string_view slot) const;
  bool inputs_finite() const;
  // "at [0, 3]: tensor1 0 / tensor2 0"; empty without element evidence.
  std::string element_text() const;
  // "Adam's", where a second moment or the op's name shows it, else "the optimizer's".
  std::string optimizer_name() const;
};

Case make_case(const Birth& birth, Names& names, std::vector<const EvidenceRecord*> elements);

// Of a reduction: how many elements went into each result.
double elements_of_one(const Case& c);

// Of a mean over labels: whether every label that met has class weight 0, so that the sum of the weights is 0.
bool weighs_nothing(const Case& c);

// An upper bound of |output| from the inputs' largest magnitudes; infinity when the op table cannot say.
double magnitude_bound(const Case& c);
// The same for sums of products of two of the inputs.
double bilinear_bound(const Case& c);

// Which samples of the batch are bad, for a birth of kind kBatch.
struct BadSamples {
  std::vector<std::int64_t> ids;     // of the bad row, or of the whole batch
  std::vector<std::int64_t> coords;  // of the first bad element
  std::int64_t row = -1;
  bool rows_known = false;   // ids are those of bad rows
  bool may_be_more = false;  // rows beyond the first were not recorded
};
BadSamples bad_samples(const Case& c);

}  // namespace nanhunt::analyze
