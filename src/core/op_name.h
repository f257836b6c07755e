// SPDX-License-Identifier: Apache-2.0
// Names of ops as dispatchers write them: "add_", "aten::add_.Tensor", "sqrt_backward".
#pragma once

#include <string_view>

namespace nanhunt {

// Without namespace and overload: "add_" of "aten::add_.Tensor".
constexpr std::string_view plain_op_name(std::string_view op) {
  constexpr std::string_view kAten = "aten::";
  if (op.starts_with(kAten)) op.remove_prefix(kAten.size());
  return op.substr(0, op.find('.'));
}

// The same of an op over a list of tensors, which does to each what the plain one does: "add_" of
// "aten::_foreach_add_".
constexpr std::string_view element_op_name(std::string_view op) {
  constexpr std::string_view kForeach = "_foreach_";
  op = plain_op_name(op);
  if (op.starts_with(kForeach)) op.remove_prefix(kForeach.size());
  return op;
}

// "sqrt" of "sqrt_backward"; "" of what is no gradient.
constexpr std::string_view forward_op_name(std::string_view plain) {
  constexpr std::string_view kBackward = "_backward";
  return plain.ends_with(kBackward) ? plain.substr(0, plain.size() - kBackward.size()) : std::string_view();
}

}  // namespace nanhunt
