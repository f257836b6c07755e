// SPDX-License-Identifier: Apache-2.0
// What a dispatched op does with its arguments, read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/c_adapter.h"

namespace nanhunt::tap {

enum class ArgKind : std::uint8_t { kTensor, kTensors, kNumber, kNumbers, kOther };

// How an argument was given, as part of the key under which a call is known: 8 * index + one of these. kAsRead is a
// tensor that the op could write, but does not this time.
enum : std::int32_t { kAsTensor = 0, kAsNumber, kAsScalarRead, kAsResult, kAsWritten, kAsRead };
inline constexpr std::int32_t kWide = -1;  // in that key: computed in fp64

struct Arg {
  std::string name;
  std::int32_t index = 0;
  ArgKind kind = ArgKind::kOther;
  std::int32_t role = NANHUNT_READ;
  bool written = false;
  bool only_written = false;  // out=: what was there does not matter
  bool blind = false;         // its contents are not read, so they may be gone
  const c10::IValue* fallback = nullptr;  // its default
  bool keyword = false;
};

// What one number does to tensors, where the other argument is one: some such numbers make nothing infinite.
enum class ByNumber : std::uint8_t { kNone, kTimes, kPlus, kOver };

// How the rows of one op overload are made.
struct Plan {
  std::string op, overload;
  std::vector<Arg> args;
  std::vector<std::string> outputs;  // what is returned beside what was written; "": that
  const Arg* written_if = nullptr;   // what is written is, only where this is given
  const Arg* non_blocking = nullptr; // what it copies to the host may come after it has returned
  const Arg* state_steps = nullptr;
  const Arg* into_part = nullptr;    // of its memory a part is written, which is what is returned first
  std::size_t returns = 0;
  bool decomposes = false;  // into ops that are watched
  bool of_python = false;   // the program's own, written in Python: what it calls is heard
  bool skip = false, garbage = false, per_element = false, writes = false, collective = false, sends = false, waits = false;
  bool scalar_read = false, fresh = false, draws = false, functional = false;
  bool view = false;    // shows what it was given, and writes nothing
  bool places_none = false;  // ... and its backward computes nothing either
  bool asks = false;    // programs ask by it whether numbers are finite
  bool keeps_finite = false;  // makes nothing infinite of finite numbers that fit into its result's format
  ByNumber by_number = ByNumber::kNone;  // what it does with a number
  bool ignores_old = false;   // what it writes over does not matter
  std::uint32_t armed = 0;    // phases in which badness began at it once, as bits: what it writes over is copied before
  // Numbers of calls, by what was given.
  struct Known {
    std::vector<std::int32_t> key;
    std::int64_t call;
  };
  std::vector<Known> calls;

  const Arg* find(std::string_view name) const {
    for (const Arg& arg : args)
      if (arg.name == name) return &arg;
    return nullptr;
  }
};

namespace plans {

inline bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

template <std::size_t N>
bool among(std::string_view text, const std::string_view (&names)[N]) {
  for (std::string_view name : names)
    if (name == text) return true;
  return false;
}

inline std::string_view without_underscores(std::string_view name) {
  while (!name.empty() && name.back() == '_') name.remove_suffix(1);
  return name;
}

// Select; their numbers are not mixed into the output.
inline constexpr std::string_view kMasks[] = {"mask", "condition"};
inline constexpr std::string_view kIndices[] = {"index", "indices", "offsets", "offset2bag", "bag_size", "max_indices"};
inline constexpr std::string_view kLabelled[] = {"nll_loss", "_ctc_loss", "_cudnn_ctc_loss", "multi_margin_loss",
                                                 "multilabel_margin_loss"};
// Whole numbers that say what a result means: a mean over no label is 0 / 0.
inline constexpr std::string_view kTelling[] = {"ignore_index"};
// Written without a look at what was there.
inline constexpr std::string_view kGarbage[] = {"empty", "new_empty", "empty_like", "empty_strided",
                                                "new_empty_strided", "empty_permuted", "_empty_affine_quantized",
                                                "resize", "resize_as", "_resize_output"};
// Read shape and format of their argument, not its contents.
inline constexpr std::string_view kShapeOnly[] = {"zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
                                                  "randint_like", "new_zeros", "new_ones", "new_full"};
// Change no contents, or give out none: views by another name, and questions.
inline constexpr std::string_view kNoise[] = {
    "detach", "lift_fresh", "lift", "alias", "is_same_size", "is_pinned", "_record_function_enter",
    "_record_function_enter_new", "_record_function_exit", "set_data", "is_set_to", "_has_same_storage_numel",
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "record_stream", "_unsafe_view", "_reshape_alias",
    "set_", "_version", "_has_compatible_shallow_copy_type", "stride", "size", "storage_offset", "is_contiguous",
    "dim", "numel", "_print", "_assert_async", "_functional_assert_async", "_assert_tensor_metadata",
    "requires_grad_", "retain_grad"};
// Views whose backward is one.
inline constexpr std::string_view kReshapes[] = {"alias", "detach", "lift_fresh", "permute", "squeeze", "t", "transpose",
                                                 "unsqueeze", "view", "_reshape_alias", "_unsafe_view"};
// By which programs ask whether numbers are finite; the comparisons where it is with infinity or with the same numbers.
inline constexpr std::string_view kQuestions[] = {"isnan", "isinf", "isposinf", "isneginf"};
inline constexpr std::string_view kComparisons[] = {"eq", "ne"};
// Hand on numbers that they were given, or smaller ones.
inline constexpr std::string_view kKeepFinite[] = {
    "_reshape_copy", "_to_copy", "_unsafe_index", "abs", "adaptive_max_pool2d", "adaptive_max_pool3d", "alias_copy", "amax", "amin",
    "aminmax", "as_strided_copy", "bernoulli", "cat", "ceil", "channel_shuffle", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "contiguous", "copy", "cos", "cummax", "cummin", "detach_copy", "diag_embed", "diagonal_backward",
    "diagonal_copy", "diagonal_scatter", "embedding", "erf", "expand_copy", "fill", "flip", "floor", "fmax", "fmin",
    "fractional_max_pool2d", "full", "full_like", "gather", "hardsigmoid", "hardtanh", "hardtanh_backward", "im2col", "index",
    "index_select", "kthvalue", "masked_fill", "masked_scatter", "masked_select", "max", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "maximum", "median", "min", "minimum", "native_channel_shuffle", "neg", "new_full", "new_ones",
    "new_zeros", "ones", "ones_like", "permute_copy", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d",
    "reflection_pad3d", "relu", "repeat", "replication_pad1d", "replication_pad2d", "replication_pad3d", "roll", "rot90", "round",
    "scalar_tensor", "select_backward", "select_copy", "select_scatter", "sigmoid", "sign", "sin", "slice_backward", "slice_copy",
    "slice_scatter", "sort", "split_copy", "split_with_sizes_copy", "squeeze_copy", "stack", "t_copy", "take", "tanh", "threshold",
    "threshold_backward", "topk", "transpose_copy", "tril", "triu", "trunc", "unbind_copy", "unfold_copy", "unsqueeze_copy",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "view_copy", "where", "zero", "zeros", "zeros_like"};
// Look at nothing of what they write over.
inline constexpr std::string_view kIgnoreOld[] = {"copy", "fill", "zero"};
// Written although their schemas do not say so.
inline constexpr std::string_view kTrains[] = {"aten::native_batch_norm", "aten::cudnn_batch_norm",
                                               "aten::miopen_batch_norm"};
inline constexpr std::string_view kRunning[] = {"running_mean", "running_var"};
struct Collective {
  std::string_view name, written;
};
inline constexpr Collective kCollectives[] = {
    {"allreduce_", "tensors"}, {"allreduce_coalesced_", "tensors"}, {"broadcast_", "tensors"}, {"reduce_", "tensors"},
    {"recv_", "tensors"}, {"recv_any_source_", "tensors"}, {"allgather_", "output_tensors"},
    {"_allgather_base_", "output_tensor"}, {"gather_", "output_tensors"}, {"allgather_coalesced_", "output_lists"},
    {"allgather_into_tensor_coalesced_", "outputs"}, {"reduce_scatter_", "output_tensors"},
    {"_reduce_scatter_base_", "output_tensor"}, {"reduce_scatter_tensor_coalesced_", "outputs"},
    {"scatter_", "output_tensors"}, {"alltoall_", "output_tensors"}, {"alltoall_base_", "output"}};

// Fill a part of the memory that this argument gives them. The rest is nobody's yet.
struct IntoPart {
  std::string_view op, argument;
};
inline constexpr IntoPart kIntoParts[] = {{"fsdp::all_gather_copy_in", "all_gather_output"}};
// Namespaces of what PyTorch itself registers in Python.
inline constexpr std::string_view kPythonOfPytorch[] = {"prims", "debugprims", "rngprims", "quantized_decomposed",
                                                        "c10d_functional", "fsdp"};

inline bool is_unsaid(std::string_view op, std::string_view name, std::string_view argument) {
  if (among(op, kTrains)) return among(argument, kRunning);
  if (!starts(op, "c10d::")) return false;
  for (const Collective& known : kCollectives)
    if (known.name == name) return known.written == argument;
  return false;
}

// What one element of a list argument is called in the op for one tensor; a number (eps) keeps its name.
inline std::string singular(std::string_view name, std::string_view op, ArgKind kind) {
  if (name == "scalar" || name == "scalars" || name == "exponents") {
    std::string_view base = without_underscores(op);
    if (starts(base, "_foreach_")) base.remove_prefix(9);
    if (base == "addcdiv" || base == "addcmul") return "value";
    if (base == "pow") return "exponent";
    if (base == "lerp") return "weight";
    if (base == "clamp_min") return "min";
    if (base == "clamp_max") return "max";
    return "other";
  }
  if (name == "tensors1") return "end";
  if (name == "weights") return "weight";
  if (starts(op, "_fused_")) {
    if (name == "momentum_buffer_list") return "momentum_buffer";
    if (kind == ArgKind::kTensors && !name.empty() && name.back() == 's') name.remove_suffix(1);
  }
  return std::string(name);
}

inline ArgKind kind_of(const c10::Argument& argument) {
  const std::string type = argument.type()->annotation_str();
  if (type == "Tensor" || type == "Optional[Tensor]") return ArgKind::kTensor;
  if (type.find("Tensor]") != std::string::npos && type.find("Dict") == std::string::npos) return ArgKind::kTensors;
  if (type == "number" || type == "float" || type == "Optional[number]" || type == "Optional[float]" ||
      type == "Scalar" || type == "Optional[Scalar]" || among(argument.name(), kTelling))
    return ArgKind::kNumber;
  if (type == "List[number]" || type == "List[float]" || type == "Optional[List[float]]" || type == "List[Scalar]")
    return ArgKind::kNumbers;
  return ArgKind::kOther;
}

// "registered at train.py:12"; up to PyTorch 2.4 "registered at /dev/null:12". PyTorch's own are ops as any other, but for
// those that it registers for others.
inline bool is_of_python(std::string_view registered, std::string_view op) {
  if (registered.find("/dev/null:") != registered.npos) return !among(op.substr(0, op.find("::")), kPythonOfPytorch);
  const std::size_t end = registered.rfind(".py:");
  if (end == registered.npos) return false;
  const std::string_view file = registered.substr(0, end + 3);
  return file.ends_with("/torch/_library/custom_ops.py") || file.find("-packages/torch/") == file.npos;
}

inline Plan read(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  Plan plan;
  plan.op = schema.name();
  plan.overload = schema.overload_name();
  const std::string_view op = plan.op;
  const std::size_t colons = op.find("::");
  const std::string_view name = colons == std::string_view::npos ? op : op.substr(colons + 2);
  const std::string_view bare = without_underscores(name);
  plan.per_element = (starts(name, "_foreach_") || starts(name, "_fused_") || starts(name, "_amp_foreach_")) &&
                     !starts(name, "_fused_dropout") && !starts(name, "_fused_rms") &&
                     !starts(name, "_fused_moving") && !starts(name, "_fused_sdp");
  plan.functional = starts(op, "_c10d_functional::");
  plan.collective = starts(op, "c10d::") || plan.functional;
  plan.sends = op == "c10d::send";
  // Where a backend has a kernel of its own (silu_backward), that runs.
  plan.decomposes = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                    !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                    !handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !plan.collective;
  plan.of_python = is_of_python(handle.debug(), op);
  const bool blind = among(bare, kShapeOnly) || among(bare, kGarbage);
  std::int32_t index = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    Arg arg;
    arg.index = index++;
    arg.kind = kind_of(argument);
    arg.keyword = argument.kwarg_only();
    arg.written = is_unsaid(op, name, argument.name()) ||
                  (argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    if (argument.default_value()) arg.fallback = &*argument.default_value();
    if (among(argument.name(), kMasks)) {
      arg.role = NANHUNT_MASK;
    } else if (among(argument.name(), kIndices) ||
               ((argument.name() == "target" || argument.name() == "targets") && [&] {
                 for (std::string_view start : kLabelled)
                   if (starts(name, start)) return true;
                 return false;
               }())) {
      arg.role = NANHUNT_INDEX;
    } else if (name.find("backward") != std::string_view::npos && !starts(argument.name(), "grad")) {
      arg.role = NANHUNT_SAVED;
    }
    if (arg.written) arg.role = NANHUNT_OVERWRITTEN;
    arg.blind = blind;
    arg.only_written = arg.written && arg.keyword && !plan.per_element && name.back() != '_';
    arg.name = plan.per_element ? singular(argument.name(), name, arg.kind) : argument.name();
    plan.writes = plan.writes || arg.written;
    plan.draws = plan.draws || argument.name() == "generator";
    plan.args.push_back(std::move(arg));
  }
  std::size_t at = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "non_blocking") plan.non_blocking = &plan.args[at];
    if (argument.name() == "state_steps") plan.state_steps = &plan.args[at];
    if (argument.name() == "training" && among(op, kTrains)) plan.written_if = &plan.args[at];
    if (argument.name() == "grad_scale" && starts(name, "_fused_") && plan.per_element)
      plan.written_if = &plan.args[at];
    ++at;
  }
  const auto& returns = schema.returns();
  plan.returns = returns.size();
  bool view = !returns.empty() && !plan.writes;
  std::size_t position = 0;
  for (const c10::Argument& result : returns) {
    const c10::AliasInfo* alias = result.alias_info();
    view = view && alias != nullptr && !alias->isWrite();
    std::string slot;
    if (alias == nullptr || !alias->isWrite()) {
      slot = !result.name().empty() ? result.name() : returns.size() == 1 ? "out" : "out" + std::to_string(position);
    }
    plan.fresh = plan.fresh || !slot.empty();
    plan.outputs.push_back(std::move(slot));
    ++position;
  }
  for (const IntoPart& known : kIntoParts) {
    if (known.op != op) continue;
    for (Arg& arg : plan.args) {
      if (arg.name != known.argument) continue;
      arg.kind = ArgKind::kOther;
      plan.into_part = &arg;
      for (std::size_t i = 1; i < plan.outputs.size(); ++i) plan.outputs[i].clear();
    }
  }
  plan.view = view;
  std::string_view one = bare;  // of a list
  if (starts(one, "_foreach_")) one.remove_prefix(9);
  plan.keeps_finite = starts(op, "aten::") && among(one, kKeepFinite);
  if (starts(op, "aten::"))
    plan.by_number = one == "mul"                   ? ByNumber::kTimes
                     : one == "div"                 ? ByNumber::kOver
                     : one == "add" || one == "sub" ? ByNumber::kPlus
                                                    : ByNumber::kNone;
  plan.ignores_old = starts(op, "aten::") && (among(one, kIgnoreOld) || (plan.draws && plan.writes));
  plan.garbage = among(bare, kGarbage);
  plan.asks = (among(name, kQuestions) && plan.args.size() == 1) || (among(name, kComparisons) && plan.args.size() == 2);
  plan.skip = among(name, kNoise) || among(bare, kNoise) || view || starts(op, "profiler::") || starts(op, "prim::") ||
              starts(op, "inductor::");
  plan.places_none = plan.skip && starts(op, "aten::") && among(name, kReshapes);
  plan.waits = name == "wait_tensor";
  plan.scalar_read = name == "_local_scalar_dense" || name == "item";
  return plan;
}

}  // namespace plans

// By schema: an op's lives as long as the op is registered.
class Plans {
 public:
  Plan& of(const c10::OperatorHandle& op) {
    std::unique_ptr<Plan>& plan = plans_[&op.schema()];
    if (plan == nullptr || plan->op != op.schema().name() || plan->overload != op.schema().overload_name())
      plan = std::make_unique<Plan>(plans::read(op));
    return *plan;
  }

 private:
  ska::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<Plan>> plans_;
};

}  // namespace nanhunt::tap
