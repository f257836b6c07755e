# SPDX-License-Identifier: Apache-2.0
"""Graphs as the compiler was given them, before it fused them: functional, one node an op, each with its module and
line. They are data: nothing of the program's is in them."""
from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from nanhunt._names import plain_path
from nanhunt._tap.sites import THEIRS, file_name
from nanhunt._weak_id_dict import WeakIdDict

_MOST_NODES = 1 << 14  # of a graph that is kept
_LINE = re.compile(r'File "(.+?)", line (\d+), in (\S+)')
_REUSED = re.compile(r"= (?:reinterpret_tensor\()?(\w+)\b.*# reuse")
_PART = re.compile(r"\['?(\w+)'?\]")


@dataclass(frozen=True)
class Ref:
    """The result of an earlier node."""

    node: int


@dataclass(frozen=True)
class Line:
    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Node:
    kind: str      # placeholder, get_attr, call_function, output
    name: str
    target: Any
    args: Any      # with Refs
    kwargs: Any
    path: str      # of the module, below the one whose forward was compiled
    lines: tuple[Line, ...]  # of the program and of packages, innermost first
    last_of: tuple[int, ...] = ()  # results that nobody reads after it


class Graph:
    def __init__(self, module: torch.fx.GraphModule, is_backward: bool) -> None:
        self.is_backward = is_backward
        self.opened = 0  # times
        self.called = False
        self.lack = ""   # why it is never opened
        self.overwritten: frozenset[int] = frozenset()  # inputs into which it writes what is not theirs
        self.constants: dict[str, Any] = {}
        self.nodes: list[Node] = []
        numbers: dict[Any, int] = {}
        last: dict[int, int] = {}

        def refer(node: Any) -> Any:
            last[numbers[node]] = len(self.nodes)
            return Ref(numbers[node])

        for node in module.graph.nodes:
            args, kwargs = (torch.fx.node.map_arg(given, refer) for given in (node.args, node.kwargs))
            if node.op == "get_attr":
                self.constants[node.target] = _attribute(module, node.target)
            numbers[node] = len(self.nodes)
            meta = node.meta
            stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
            self.nodes.append(Node(node.op, node.name, node.target, args, kwargs,
                                   _path(next(reversed(stack.values()))[0]) if stack else "",
                                   _lines(meta.get("stack_trace") or "")))
        for result, reader in last.items():
            node = self.nodes[reader]
            self.nodes[reader] = Node(**{**vars(node), "last_of": (*node.last_of, result)})

    def inputs(self) -> list[str]:
        return [node.name for node in self.nodes if node.kind == "placeholder"]

    def learn(self, compiled: Any) -> None:
        """What the compiler made of it."""
        names = self.inputs()
        reused = set(_REUSED.findall(getattr(compiled, "source_code", None) or ""))
        written = set(getattr(compiled, "mutated_input_idxs", None) or ())
        self.overwritten = frozenset(i for i, name in enumerate(names) if i in written or name in reused)


_graphs: WeakIdDict[Graph] = WeakIdDict()  # of compiled ones


def graph_of(compiled: Any) -> Graph | None:
    """As it was before it was compiled; None: nobody has seen it, as where a cache had it."""
    return _graphs.get(id(compiled))


def watch_compiler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around the function that compiles a graph, which it changes while it does."""
    @functools.wraps(original)
    def compiles(module: Any, *args: Any, **kwargs: Any) -> Any:
        graph = None
        try:
            if len(module.graph.nodes) <= _MOST_NODES:
                graph = Graph(module, bool(kwargs.get("is_backward")))
        except Exception:  # it is told as a whole
            graph = None
        compiled = original(module, *args, **kwargs)
        if graph is not None:
            with suppress(Exception):
                graph.learn(compiled)
                _graphs.set(compiled, graph)
        return compiled

    return compiles


def _attribute(module: Any, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module


def _path(text: str) -> str:
    """"blocks.0", of "L['self'].blocks[0]"."""
    text = _PART.sub(r".\1", text.removeprefix("L").replace("._modules", ""))
    parts = [part for part in text.split(".") if part]
    return plain_path(*parts[1:])


def _lines(trace: str) -> tuple[Line, ...]:
    found = [Line(file, int(line), function) for file, line, function in _LINE.findall(trace)]
    return tuple(one for one in reversed(found) if not one.file.startswith(THEIRS) and file_name(one.file))
