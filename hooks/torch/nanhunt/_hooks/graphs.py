# SPDX-License-Identifier: Apache-2.0
"""Graphs as the compiler was given them, before it fused them: functional, one node an op, each with its module and
line. They hold no code of the program's."""
from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanhunt._names import plain_path
from nanhunt._tap.plain import NARROW
from nanhunt._tap.traced import Frame, frames_of, in_classes
from nanhunt._weak_id_dict import WeakIdDict

_MOST_NODES = 1 << 14      # of a graph that is kept
_MOST_BYTES = 256 << 20    # of what lives at one time where it is run op by op
# A buffer takes an input's memory.
_REUSED = re.compile(r"= (?:reinterpret_tensor\(|std::move\()?(\w+)\b.*(?:#|//) +reuse")
_ROOT = re.compile(r"[LG]\['?(\w+)'?\]|[LG]__(\w+?)___|(\w+)")
_PART = re.compile(r"\['?(\w+)'?\]")
_MEMORY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
_DRAWS = ("inductor_seed", "inductor_seeds", "inductor_random", "inductor_randint")


@dataclass(frozen=True)
class Ref:
    """The result of an earlier node."""

    node: int


@dataclass(frozen=True)
class Node:
    kind: str      # placeholder, get_attr, call_function, output
    name: str
    target: Any
    args: Any      # with Refs
    kwargs: Any
    root: str      # the name by which the compiled function knows the outermost module around it
    path: str      # of the module, below that one
    frames: list[Frame]  # of the program and of packages, innermost first
    narrow: torch.dtype | None = None  # of its result, if that has 16 bits
    reads: tuple[int, ...] = ()  # nodes whose results it reads
    last_of: tuple[int, ...] = ()  # results that nobody reads after it
    is_computed_again: bool = False  # of a backward: what its forward computed and did not save


class Graph:
    def __init__(self, module: torch.fx.GraphModule, is_backward: bool, is_inference: bool, number: int | None) -> None:
        self.is_backward, self.is_forward = is_backward, not is_backward and not is_inference
        self.forward = _forwards.get(number) if is_backward and number is not None else None  # that saved what it reads
        self.prefixes: dict[str, str] = {}  # paths of roots, as far as they were found
        self.results: int | None = None  # so many are the program's: what follows is saved for backward
        self.draws = False      # random numbers
        self.reads_memory = False  # that nothing has written, maybe
        # A fused kernel keeps in fp32 what ops hand on in 16 bits.
        self.keeps_wide = not getattr(torch._inductor.config, "emulate_precision_casts", False)
        self.lack = ""          # why it is never opened
        self.overwritten: frozenset[int] = frozenset()  # inputs into which it writes what is not theirs
        self.constants: dict[str, torch.Tensor] = {}
        self.nodes: list[Node] = []
        if not is_backward and number is not None:
            _forwards[number] = self
        self._read(module)
        self.inputs = [i for i, node in enumerate(self.nodes) if node.kind == "placeholder"]

    def _read(self, module: torch.fx.GraphModule) -> None:
        numbers: dict[Any, int] = {}
        last: dict[int, int] = {}
        sizes: list[int] = []
        # Both were cut from one graph, in which a name stands for one node.
        computed = {(node.name, node.target) for node in self.forward.nodes if node.kind == "call_function"
                    } if self.forward is not None else set()

        def refer(node: Any) -> Any:
            last[numbers[node]] = len(self.nodes)
            return Ref(numbers[node])

        for node in module.graph.nodes:
            args, kwargs = (torch.fx.node.map_arg(given, refer) for given in (node.args, node.kwargs))
            numbers[node] = len(self.nodes)
            sizes.append(self._read_node(module, node))
            meta = node.meta
            stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
            root, path = _path(next(reversed(stack.values()))[0]) if stack else ("", "")
            self.nodes.append(Node(node.op, node.name, node.target, args, kwargs, root, path,
                                   in_classes(frames_of(meta.get("stack_trace") or ""),
                                              [one[1] for one in stack.values()]), _narrow(meta.get("val")),
                                   tuple(numbers[one] for one in node.all_input_nodes),
                                   is_computed_again=(node.name, node.target) in computed))
        self.keeps_wide = self.keeps_wide and any(node.narrow for node in self.nodes)
        for result, reader in last.items():
            node = self.nodes[reader]
            self.nodes[reader] = replace(node, last_of=(*node.last_of, result))
        alive = largest = 0
        for i, node in enumerate(self.nodes):
            alive += sizes[i]
            largest = max(largest, alive)
            alive -= sum(sizes[j] for j in node.last_of)
        if largest > _MOST_BYTES:
            self.lack = "What it computes in between takes too much memory to be computed op by op."

    def _read_node(self, module: Any, node: Any) -> int:
        """Bytes of what the node makes. Notes what keeps the graph from being opened."""
        meta, func = node.meta, node.target
        if node.op == "output" and meta.get("user_visible_output_idxs"):
            self.results = max(meta["user_visible_output_idxs"]) + 1
        if node.op == "get_attr":
            constant = _attribute(module, func)
            if isinstance(constant, torch.Tensor):
                self.constants[func] = constant
            else:
                self.lack = "A part of it is called as a whole, as loops and branches are."
        if isinstance(func, torch._ops.OpOverload):
            name = func._schema.name.rpartition("::")[2]
            self.draws = self.draws or torch.Tag.nondeterministic_seeded in func.tags or name in _DRAWS
            self.reads_memory = self.reads_memory or takes_memory(func)
        made = [t for t in _flat(meta.get("val")) if isinstance(t, torch.Tensor)]
        if any(t.device.type != "cpu" for t in made):
            self.lack = "It is not looked into on a device."
        return 0 if node.op in ("placeholder", "get_attr") else sum(_bytes(t) for t in made)

    def note_compiled(self, compiled: Any) -> None:
        """Finds, in what the compiler made of it, the inputs that are written over."""
        names = [self.nodes[i].name for i in self.inputs]
        code = getattr(compiled, "source_code", None) or ""
        if self.is_backward and not code:  # it may write over what it is given
            self.overwritten = frozenset(range(len(names)))
            return
        reused = set(_REUSED.findall(code))
        written = set(getattr(compiled, "mutated_input_idxs", None) or ())
        self.overwritten = frozenset(i for i, name in enumerate(names) if i in written or name in reused)


_graphs: WeakIdDict[Graph | str] = WeakIdDict()  # of compiled ones; text: why there is none
_forwards: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()  # by the compiler's number


def graph_of(compiled: Any) -> Graph | str:
    """As it was before it was compiled, or why that is not known; "": nobody has seen it, as where a cache had it."""
    return _graphs.get(id(compiled), "")


def watch_compiler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around the function that compiles a graph, which it changes while it does."""
    @functools.wraps(original)
    def compiles(module: Any, *args: Any, **kwargs: Any) -> Any:
        graph: Graph | str = "It has too many operations to be looked into."
        try:
            if len(module.graph.nodes) <= _MOST_NODES:
                graph = Graph(module, bool(kwargs.get("is_backward")), bool(kwargs.get("is_inference")),
                              kwargs.get("graph_id"))
        except Exception as error:
            graph = f"Its operations could not be read: {type(error).__name__}."
        compiled = original(module, *args, **kwargs)
        with suppress(Exception):  # what it gives may be nothing of the kind
            if isinstance(graph, Graph):
                graph.note_compiled(compiled)
            _graphs.set(compiled, graph)
        return compiled

    return compiles


def takes_memory(func: torch._ops.OpOverload) -> bool:
    """Its result is memory that nothing has written."""
    return func.namespace == "aten" and func._opname in _MEMORY


def _attribute(module: Any, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module


def _flat(value: Any) -> list[Any]:
    return [one for part in value for one in _flat(part)] if isinstance(value, (list, tuple)) else [value]


def _narrow(value: Any) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) and value.dtype in NARROW else None


def _bytes(t: torch.Tensor) -> int:
    """Of a tensor that stands for one; of sizes that are not fixed as they were met first."""
    count = 1
    for size in t.shape:
        count *= size if isinstance(size, int) else int(getattr(size.node, "hint", None) or 1)
    return count * t.element_size()


def _path(text: str) -> tuple[str, str]:
    """"self" and "blocks.0", of "L['self'].blocks[0]"."""
    root = _ROOT.match(text)
    if root is None:
        return "", ""
    rest = _PART.sub(r".\1", text[root.end():].replace("._modules", ""))
    return next(name for name in root.groups() if name), plain_path(*[part for part in rest.split(".") if part])
