# SPDX-License-Identifier: Apache-2.0
"""A graph's ops, one by one, of the inputs that it had: each rounded as the program is written, or as a fused kernel
computes them, which keeps what 16-bit ops hand on in fp32 until it is stored."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from nanhunt._hooks.graphs import Graph, Node, Ref, takes_memory
from nanhunt._steps.trial import first_bad, tensors
from nanhunt._tap.plain import NARROW, PLAIN
from nanhunt._tap.tap_library import unheard

_RUN = ("aten", "prims", "inductor_prims")  # whose ops are run: others are the program's
_ON_NUMBERS = ("_operator", "operator", "math", "torch")
_FUSED = {getattr(torch.Tag, name, None) for name in ("pointwise", "reduction")}
Place = Callable[[Node], None]


class Birth(NamedTuple):
    is_stored: bool  # it is bad only where it is rounded to be stored
    nan: int
    pos_inf: int
    neg_inf: int


@dataclass
class Opened:
    graph: Graph
    fused: bool = False       # its ops were computed as a fused kernel does
    made: Sequence[Any] = ()  # as the graph gives it
    written: dict[int, Any] = field(default_factory=dict)  # into its inputs, by their number
    bad: list[torch.Tensor] = field(default_factory=list)  # of these; where it was left, of what could not be read
    births: dict[int, Birth] = field(default_factory=dict)  # nodes that are bad of what was not
    began_inside: bool = False  # one of these led to what is bad in the end
    lack: str = ""            # why it was left before its end
    only_fused: tuple[Node, Birth] | None = None  # the first that is bad only as a fused kernel computes it

    def beside(self, made: Sequence[Any], written: Sequence[tuple[int, torch.Tensor]]) -> list[tuple[Any, Any]]:
        """Each result beside what the graph gave, or wrote into the input of that number."""
        return [*zip(self.made, made), *((self.written.get(number), t) for number, t in written)]


def is_bad(t: Any) -> bool:
    return type(t) in PLAIN and first_bad(t) >= 0


class GraphRun:
    """Of one graph and its inputs. `place`: where the ops of a node are said to run; None: they are not heard."""

    def __init__(self, graph: Graph, given: Sequence[Any], ends: float, fused: bool = False,
                 place: Place | None = None) -> None:
        self.opened = Opened(graph, fused)
        self._ends, self._place = ends, place
        self._results: dict[int, Any] = dict(zip(graph.inputs, given))
        self._bad = {number for number, t in self._results.items() if place is None and is_bad(t)}

    def run(self) -> Opened:
        graph, opened = self.opened.graph, self.opened
        for number, node in enumerate(graph.nodes):
            if node.kind == "get_attr":
                self._results[number] = graph.constants[node.target]
            elif node.kind == "output":
                opened.made = list(self._filled(node.args[0]))
            elif node.target is torch.ops.aten.copy_.default:  # into what it was given, as it has done
                into, value = node.args[0], self._filled(node.args[1])
                self._results[number] = value
                if isinstance(into, Ref) and into.node in graph.inputs:
                    opened.written[graph.inputs.index(into.node)] = value
            elif node.kind != "placeholder" and not self._compute(number, node):
                return opened
            for result in node.last_of:
                self._results.pop(result, None)
        with unheard():
            opened.bad = [t for t in (*opened.made, *opened.written.values()) if is_bad(t)]
        if opened.births:
            ends = [number for number, node in enumerate(graph.nodes)
                    if node.kind == "output" or node.target is torch.ops.aten.copy_.default]
            opened.began_inside = not sources_of(graph, ends, self._bad).isdisjoint(opened.births)
        return opened

    def _compute(self, number: int, node: Node) -> bool:
        """False: it cannot be."""
        args, kwargs = node.args, node.kwargs
        try:
            if time.monotonic() > self._ends:
                raise TimeoutError("it takes too long")
            is_fused = self.opened.fused and _is_fused(node)
            args, kwargs = self._filled(args, is_fused), self._filled(kwargs, is_fused)
            if self._place is not None:  # after what is stored for it, which has places of its own
                self._place(node)
            result = (_run_wide if is_fused else _run)(node, args, kwargs)
        except Exception as error:
            self.opened.lack = f"Not all of it could be computed op by op: {error}"[:300]
            with unheard():  # what is bad is handed on by the op that is left out
                self.opened.bad = [t for t in tensors([args, list(kwargs.values())]) if is_bad(t)]
            return False
        self._results[number] = result
        if self._place is None and any(is_bad(t) for t in (result if isinstance(result, (tuple, list)) else (result,))):
            self._bad.add(number)
            if self._bad.isdisjoint(node.reads):
                self.opened.births[number] = _birth(result, is_stored=False)
        return True

    def _filled(self, value: Any, wide: bool = False) -> Any:
        """`wide`: what has 16 bits in fp32, and what was not rounded as it is."""
        if isinstance(value, Ref):
            return self._wide(value.node) if wide else self._stored(value.node)
        if isinstance(value, (list, tuple)):
            filled = [self._filled(one, wide) for one in value]
            return tuple(filled) if isinstance(value, tuple) else filled
        if isinstance(value, dict):
            return {key: self._filled(one, wide) for key, one in value.items()}
        if isinstance(value, slice):
            return slice(*(self._filled(one, wide) for one in (value.start, value.stop, value.step)))
        return value

    def _wide(self, number: int) -> Any:
        t = self._results[number]
        if not isinstance(t, torch.Tensor) or t.dtype not in NARROW:
            return t
        if self._place is not None:
            self._place(self.opened.graph.nodes[number])
        return t.float()

    def _stored(self, number: int) -> Any:
        """Rounded, as it is where a kernel stores it."""
        t, narrow = self._results[number], self.opened.graph.nodes[number].narrow
        if narrow is None or not isinstance(t, torch.Tensor) or t.dtype == narrow:
            return t
        if self._place is not None:
            self._place(self.opened.graph.nodes[number])
        stored = t.to(narrow)
        if self._place is None and number not in self._bad and is_bad(stored):
            self._bad.add(number)
            self.opened.births[number] = _birth(stored, is_stored=True)
        return stored


def _birth(result: Any, is_stored: bool) -> Birth:
    made = [t for t in tensors(result) if t.is_floating_point()]
    nan, pos_inf, neg_inf = (sum(int(which(t).sum()) for t in made) for which in (
        torch.isnan, torch.isposinf, torch.isneginf))
    return Birth(is_stored, nan, pos_inf, neg_inf)


def sources_of(graph: Graph, ends: Sequence[int], among: set[int] | None = None) -> set[int]:
    """These nodes, and those whose results lead to them by way of those `among` them."""
    todo, seen = list(ends), set(ends)
    while todo:
        for before in graph.nodes[todo.pop()].reads:
            if before not in seen and (among is None or before in among):
                seen.add(before)
                todo.append(before)
    return seen


def _is_cast(node: Node) -> bool:
    return node.target in (torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default)


def _is_fused(node: Node) -> bool:
    """Its kernel is one with those of what it reads: elementwise, a reduction, a view, an element of a tuple."""
    func = node.target
    if not isinstance(func, torch._ops.OpOverload):
        return True
    views = bool(func._schema.returns) and func._schema.returns[0].alias_info is not None
    return views and "dtype" not in func._overloadname or _is_cast(node) or not _FUSED.isdisjoint(func.tags)


def _run_wide(node: Node, args: Any, kwargs: Any) -> Any:
    if node.narrow is not None:
        if _is_cast(node):
            return args[0].float()
        if kwargs.get("dtype") == node.narrow:
            kwargs = {**kwargs, "dtype": torch.float32}
    return _run(node, args, kwargs)


def _run(node: Node, args: Any, kwargs: Any) -> Any:
    func = node.target
    if isinstance(func, torch._ops.OpOverload):
        if func is torch.ops.prims.convert_element_type.default:  # what the compiler makes of a cast
            return torch.ops.aten._to_copy.default(args[0], dtype=args[1])
        if takes_memory(func):  # nobody knows what the kernel found there
            with unheard():
                return func(*args, **kwargs).zero_()
        if func.namespace in _RUN and not func._schema.is_mutable and func._schema.returns:
            return func(*args, **kwargs)
    elif getattr(func, "__module__", "") in _ON_NUMBERS:
        return func(*args, **kwargs)
    raise NotImplementedError(f"{func} is not an operation of PyTorch's that only computes")
