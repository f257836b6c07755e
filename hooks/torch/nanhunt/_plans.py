# SPDX-License-Identifier: Apache-2.0
"""What a dispatched op does with its arguments, read once from its schema."""
from __future__ import annotations

from typing import Any, Callable

import torch

from nanhunt import _library as lib

# Selects; its numbers are not mixed into the output.
_MASKS = {"mask", "condition"}
_INDICES = {"index", "indices", "offsets", "offset2bag", "bag_size", "max_indices"}
_LABELLED = ("nll_loss", "_ctc_loss", "_cudnn_ctc_loss", "multi_margin_loss", "multilabel_margin_loss")
# Whole numbers that say what a result means: a mean over no label is 0 / 0.
_TELLING = ("ignore_index",)
# Written without a look at what was there.
_GARBAGE = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted",
            "_empty_affine_quantized", "resize", "resize_as", "_resize_output"}
# Read shape and format of their argument, not its contents.
_SHAPE_ONLY = {"zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
               "new_ones", "new_full"}
# Change no contents, or give out none: views by another name, and questions.
_NOISE = {"detach", "lift_fresh", "lift", "alias", "is_same_size", "is_pinned", "_record_function_enter",
          "_record_function_enter_new", "_record_function_exit", "set_data", "is_set_to", "_has_same_storage_numel",
          "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "record_stream", "_unsafe_view",
          "_reshape_alias", "set_", "_version", "_has_compatible_shallow_copy_type", "stride", "size", "storage_offset",
          "is_contiguous", "dim", "numel", "_print", "_assert_async", "_functional_assert_async",
          "_assert_tensor_metadata", "requires_grad_", "retain_grad"}
# Written although their schemas do not say so: name -> (arguments, argument that says whether).
_TRAINING = (("running_mean", "running_var"), "training")
_UNSAID: dict[str, tuple[tuple[str, ...], str]] = {
    "aten::native_batch_norm": _TRAINING, "aten::cudnn_batch_norm": _TRAINING, "aten::miopen_batch_norm": _TRAINING}
_WRITTEN_BY_ALL = ("tensors",)
_COLLECTIVES: dict[str, tuple[str, ...]] = {
    "allreduce_": _WRITTEN_BY_ALL, "allreduce_coalesced_": _WRITTEN_BY_ALL, "broadcast_": _WRITTEN_BY_ALL,
    "reduce_": _WRITTEN_BY_ALL, "recv_": _WRITTEN_BY_ALL, "recv_any_source_": _WRITTEN_BY_ALL,
    "allgather_": ("output_tensors",), "_allgather_base_": ("output_tensor",), "gather_": ("output_tensors",),
    "allgather_coalesced_": ("output_lists",), "allgather_into_tensor_coalesced_": ("outputs",),
    "reduce_scatter_": ("output_tensors",), "_reduce_scatter_base_": ("output_tensor",),
    "reduce_scatter_tensor_coalesced_": ("outputs",), "scatter_": ("output_tensors",),
    "alltoall_": ("output_tensors",), "alltoall_base_": ("output",)}

TENSOR, TENSORS, NUMBER, NUMBERS, OTHER = range(5)
# How an argument was given, as part of the key under which a call is known: 8 * index + one of these.
# AS_READ is a tensor that the op could write, but does not this time.
AS_TENSOR, AS_NUMBER, AS_SCALAR_READ, AS_RESULT, AS_WRITTEN, AS_READ = range(6)
WIDE = -1  # in that key: computed in fp64


class Arg:
    __slots__ = ("name", "index", "kind", "role", "written", "only_written", "blind", "as_tensor", "as_number",
                 "as_scalar_read", "as_written")

    def __init__(self, name: str, index: int, kind: int, role: int, written: bool, only_written: bool,
                 blind: bool) -> None:
        self.name, self.index, self.kind, self.role = name, index, kind, role
        self.written = written
        self.only_written = only_written  # out=: what was there does not matter
        self.blind = blind                # its contents are not read, so they may be gone
        self.as_tensor, self.as_number = 8 * index + AS_TENSOR, 8 * index + AS_NUMBER
        self.as_scalar_read, self.as_written = 8 * index + AS_SCALAR_READ, 8 * index + AS_WRITTEN


class Plan:
    """How the rows of one op overload are made."""

    __slots__ = ("func", "call", "op", "args", "by_name", "outputs", "skip", "garbage", "per_element", "writes",
                 "collective", "waits", "scalar_read", "simple", "calls", "written_if", "fresh", "may_be_late")

    def __init__(self, func: Any) -> None:
        self.func = func  # kept: plans are found by its id
        self.call: Callable[..., Any] = func
        self.calls: dict[tuple[int, ...], int] = {}
        self.written_if = ""
        self.per_element = self.writes = self.collective = self.scalar_read = self.garbage = self.skip = False
        self.simple = self.fresh = self.waits = self.may_be_late = False
        self.args: list[Arg] = []
        self.by_name: dict[str, Arg] = {}
        self.outputs: list[str] = []
        schema = getattr(func, "_schema", None)
        if schema is None:  # a higher-order op
            self.op = f"higher_order::{getattr(func, '_name', None) or getattr(func, '__name__', 'op')}"
            return
        if type(func) is torch._ops.OpOverload:
            self.call = getattr(func, "_op", func)  # what its __call__ calls
        name = schema.name
        short = name.split("::")[-1]
        self.op = name
        self.per_element = short.startswith(("_foreach_", "_fused_", "_amp_foreach_")) and not short.startswith(
            ("_fused_dropout", "_fused_rms", "_fused_moving", "_fused_sdp"))
        self.collective = name.startswith(("c10d::", "_c10d_functional::"))
        unsaid, self.written_if = _UNSAID.get(name, ((), ""))
        if name.startswith("c10d::"):
            unsaid = _COLLECTIVES.get(short, ())
        if short.startswith("_fused_") and self.per_element:
            self.written_if = "grad_scale"
        self.args = [_arg(a, i, short, a.name in unsaid, self.per_element) for i, a in enumerate(schema.arguments)]
        self.by_name = {a.name: arg for a, arg in zip(schema.arguments, self.args)}
        self.writes = any(a.written for a in self.args)
        self.may_be_late = "non_blocking" in self.by_name  # what it copies to the host may come after it has returned
        returns = schema.returns
        aliases = [r.alias_info for r in returns]
        view = bool(returns) and not self.writes and all(a is not None and not a.is_write for a in aliases)
        # What is returned beside what was written.
        self.outputs = ["" if a is not None and a.is_write else r.name or ("out" if len(returns) == 1 else f"out{i}")
                        for i, (r, a) in enumerate(zip(returns, aliases))]
        self.fresh = any(self.outputs)
        self.garbage = short.rstrip("_") in _GARBAGE
        self.skip = (short in _NOISE or short.rstrip("_") in _NOISE or view
                     or name.startswith(("profiler::", "prim::", "inductor::")))
        self.waits = short == "wait_tensor"
        self.scalar_read = short in ("_local_scalar_dense", "item")
        self.simple = not (self.garbage or self.per_element or self.collective or self.scalar_read)


def singular(name: str, op: str) -> str:
    """What one element of a list argument is called in the op for one tensor."""
    if name in ("scalar", "scalars", "exponents"):
        base = op.replace("_foreach_", "").rstrip("_")
        return {"addcdiv": "value", "addcmul": "value", "pow": "exponent", "lerp": "weight", "clamp_min": "min",
                "clamp_max": "max"}.get(base, "other")
    if name in ("tensors1", "weights"):
        return {"tensors1": "end", "weights": "weight"}[name]
    if op.startswith("_fused_"):
        return {"momentum_buffer_list": "momentum_buffer"}.get(name, name[:-1] if name.endswith("s") else name)
    return name


def _arg(argument: Any, index: int, op: str, unsaid: bool, per_element: bool) -> Arg:
    text = str(argument.type)
    written = unsaid or (argument.alias_info is not None and argument.alias_info.is_write)
    if text in ("Tensor", "Optional[Tensor]"):
        kind = TENSOR
    elif text in ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]", "List[List[Tensor]]",
                  "Optional[List[Optional[Tensor]]]"):
        kind = TENSORS
    elif text in ("number", "float", "Optional[number]", "Optional[float]", "Scalar") or argument.name in _TELLING:
        kind = NUMBER
    elif text in ("List[number]", "List[float]", "Optional[List[float]]"):
        kind = NUMBERS
    else:
        kind = OTHER
    role = lib.READ
    if argument.name in _MASKS:
        role = lib.MASK
    elif argument.name in _INDICES or (argument.name in ("target", "targets") and op.startswith(_LABELLED)):
        role = lib.INDEX
    elif "backward" in op and not argument.name.startswith("grad"):
        role = lib.SAVED
    if written:
        role = lib.OVERWRITTEN
    blind = op.rstrip("_") in _SHAPE_ONLY or op.rstrip("_") in _GARBAGE
    only_written = written and argument.kwarg_only and not per_element and not op.endswith("_")
    return Arg(singular(argument.name, op) if per_element else argument.name, index, kind, role, written, only_written,
               blind)
