# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that made something bad of what was not: its ops, one by one, of the inputs that it had, heard by
the tap as those of an eager program. Nothing of the program's runs, and nothing of the run is written."""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.graphs import Graph, Node, Ref
from nanhunt._names import plain_path
from nanhunt._nested import tensors_in
from nanhunt._steps.trial import OTHER_KERNEL
from nanhunt._tap.plain import DTYPES, PLAIN
from nanhunt._tap.sites import file_name
from nanhunt._tap.source import lines_around
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap

_MOST = 64               # times a graph is opened
_MOST_INFINITE = 2       # ... for infinities alone, which may be meant
_SECONDS = 5.0           # that it may take
_ROOM = 256 << 20        # bytes of inputs that are kept while a graph runs, which may free them
_ROOM_COPIES = 64 << 20  # ... and of those that it writes over
_RUN = ("aten", "prims", "inductor_prims")  # whose ops are run: others are the program's
_ON_NUMBERS = ("_operator", "operator", "math", "torch")
_MOST_FRAMES = 8
MADE_NAN, GIVEN_NAN, INFINITE = 1, 2, 3  # as Tap.judge_graph says


class Inputs:
    """Of a graph that runs, kept until it has."""

    __slots__ = ("graph", "given", "lack")

    def __init__(self, graph: Graph, given: Sequence[Any], lack: str = "") -> None:
        self.graph, self.given = graph, given
        self.lack = lack  # why it will not be opened

    def tensors(self) -> list[torch.Tensor]:
        return [t for t in self.given if isinstance(t, torch.Tensor)]

    def end(self, bad: int) -> None:
        """The graph has run. What a forward was given that showed nothing bad is kept until its backward has."""
        graph = self.graph
        if graph.forward is not None:
            graph.forward.last = None
        graph.last = None if bad or graph.is_backward or graph.is_inference else self


@dataclass
class Opened:
    draws: bool                 # random numbers, anew
    made: Sequence[Any] = ()    # as the graph gives it
    written: dict[int, Any] = field(default_factory=dict)    # into its inputs, by their number
    bad: list[torch.Tensor] = field(default_factory=list)    # of these; where it was left, of what could not be read
    lack: str = ""              # why it was left before its end


def keep_inputs(graph: Graph | None, inputs: Sequence[Any]) -> Inputs | None:
    """None: nothing is known of the graph."""
    if graph is None:
        return None
    if graph.lack:
        return Inputs(graph, (), graph.lack)
    if graph.opened >= _MOST:
        return Inputs(graph, (), "It was looked into before, in as many steps as is done.")
    size = copies = 0
    for i, t in enumerate(inputs):
        if not isinstance(t, torch.Tensor):
            continue
        if type(t) not in PLAIN or not t.is_cpu:
            return Inputs(graph, (), "It is not looked into on a device, or where tensors are of a class of their own.")
        its = t.numel() * t.element_size()
        size += its
        copies += its if i in graph.overwritten else 0
    if size > _ROOM or copies > _ROOM_COPIES:
        return Inputs(graph, (), "What it was given is too large to be kept.")
    if not graph.overwritten:
        return Inputs(graph, list(inputs))
    with unheard(), torch.no_grad():
        return Inputs(graph, [t.detach().clone() if i in graph.overwritten and isinstance(t, torch.Tensor) else t
                              for i, t in enumerate(inputs)])


def open_graphs(session: Session, inputs: Inputs, bad: int) -> Opened | None:
    """`bad`: as Tap.judge_graph says. A backward that was given NaN by its forward has that one opened."""
    if bad == INFINITE:
        inputs.graph.infinite += 1
        if inputs.graph.infinite > _MOST_INFINITE:
            return None
    if bad != GIVEN_NAN:
        return _open(session, inputs)
    forward = inputs.graph.forward.last if inputs.graph.forward is not None else None
    if forward is None or forward.lack:
        return None
    state = session.state
    phase, state.phase = state.phase, lib.FORWARD
    try:
        return _open(session, forward)
    finally:
        state.phase = phase


def _open(session: Session, inputs: Inputs) -> Opened:
    graph, tap = inputs.graph, session.tap
    assert tap is not None
    graph.opened += 1
    opened = Opened(graph.draws)
    random = torch.get_rng_state()
    results: dict[int, Any] = {}
    tap.library.silence(1)
    try:
        _run_nodes(session, tap, inputs, results, opened)
    finally:
        tap.place(None)
        tap.library.silence(0)
        torch.set_rng_state(random)
    with unheard():
        if not opened.lack:
            opened.bad = [t for t in (*opened.made, *opened.written.values()) if _first_bad(t) >= 0]
        return opened


def _run_nodes(session: Session, tap: Tap, inputs: Inputs, results: dict[int, Any], opened: Opened) -> None:
    graph, prefixes = inputs.graph, _prefixes(session, inputs)
    given, told = dict(zip(graph.inputs, inputs.given)), set[str]()
    ends = time.monotonic() + _SECONDS
    for number, node in enumerate(graph.nodes):
        if node.kind == "placeholder":
            results[number] = given[number]
        elif node.kind == "get_attr":
            results[number] = graph.constants[node.target]
        elif node.kind == "output":
            opened.made = list(_filled(node.args[0], results))
        elif node.target is torch.ops.aten.copy_.default:  # into what it was given, as it has done
            into, value = node.args[0], _filled(node.args[1], results)
            results[number] = value
            if isinstance(into, Ref) and into.node in given:
                opened.written[graph.inputs.index(into.node)] = value
        else:
            args, kwargs = _filled(node.args, results), _filled(node.kwargs, results)
            try:
                if time.monotonic() > ends:
                    raise TimeoutError("it takes too long")
                tap.place(_module(node, prefixes), _site(session, node, told))
                results[number] = _run(node, args, kwargs)
            except Exception as error:
                opened.lack = f"Not all of it could be computed op by op: {error}"[:300]
                with unheard():  # what is bad is handed on by the op that is left out
                    opened.bad = [t for _, t in tensors_in((args, kwargs)) if _first_bad(t) >= 0]
                return
        for result in node.last_of:
            results.pop(result, None)


def _first_bad(t: Any) -> int:
    """Where the first number stands that is not finite, row-major; -1: there is none."""
    if type(t) not in PLAIN or not t.is_floating_point():
        return -1
    bad = (~torch.isfinite(t)).reshape(-1).nonzero()
    return int(bad[0]) if bad.numel() else -1


def report_opened(session: Session, seq: int, inputs: Inputs | None, opened: Opened | None, results: Sequence[Any],
                  written: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Of a graph's row: that its ops, one by one, are finite where its results are not, or why that is not known: ""
    that it came out of a cache. `written`: of its inputs, with their numbers."""
    recorder = session.recorder
    if recorder is None or opened is not None and opened.bad and not opened.lack:
        return

    def report(lack: str, at: int = -1, number: float = 0.0, dtype: torch.dtype = torch.float32) -> None:
        recorder.probe(seq=seq, step=session.step, mode=OTHER_KERNEL, dtype=DTYPES[dtype], ops=1, ran=int(at >= 0),
                       nan=0, pos_inf=0, neg_inf=0, flat_index=at, number=number, text=lack)

    if opened is None:
        report("" if inputs is None else inputs.lack)
    elif opened.lack:
        report(opened.lack)
    elif opened.draws:
        report("It draws random numbers: computed op by op with others, it is finite.")
    else:
        with unheard():
            pairs = [*zip(opened.made, results), *((opened.written.get(i), t) for i, t in written)]
            for ours, its in pairs:
                at = _first_bad(its)
                if at < 0 or not isinstance(ours, torch.Tensor) or ours.shape != its.shape:
                    continue
                return report("", at, float(ours.reshape(-1)[at]), its.dtype)


def _prefixes(session: Session, inputs: Inputs) -> dict[str, str]:
    """The path of each module whose forward was compiled, by the name that the compiler has for it: a parameter of one
    of its modules says so."""
    graph = inputs.graph
    names = {_address(p): path for p, path in session.parameter_names.items_alive()}
    owners = {number: names[_address(t)].rpartition(".")[0] for number, t in zip(graph.inputs, inputs.given)
              if _address(t) in names and _address(t) != 0}
    found: dict[str, str] = {}
    for node in graph.nodes:
        for ref in node.args if node.root and node.root not in found else ():
            owner = owners.get(ref.node) if isinstance(ref, Ref) else None
            if owner is not None and f".{owner}".endswith(f".{node.path}" if node.path else ""):
                found[node.root] = owner[:len(owner) - len(node.path)].rstrip(".")
    roots = {node.root for node in graph.nodes if node.root}
    return found if found or len(roots) != 1 else dict.fromkeys(roots, "")


def _address(t: Any) -> int:
    """Of its numbers; 0: it has none, as one that only stands for a tensor while a graph is made."""
    try:
        return int(t.data_ptr()) if isinstance(t, torch.Tensor) else 0
    except RuntimeError:
        return 0


def _module(node: Node, prefixes: dict[str, str]) -> str:
    """"": the one that runs."""
    return plain_path(prefixes[node.root], node.path) if node.path and node.root in prefixes else ""


def _filled(value: Any, results: dict[int, Any]) -> Any:
    if isinstance(value, Ref):
        return results[value.node]
    if isinstance(value, (list, tuple)):
        filled = [_filled(one, results) for one in value]
        return tuple(filled) if isinstance(value, tuple) else filled
    if isinstance(value, dict):
        return {key: _filled(one, results) for key, one in value.items()}
    if isinstance(value, slice):
        return slice(*(_filled(one, results) for one in (value.start, value.stop, value.step)))
    return value


def _run(node: Node, args: Any, kwargs: Any) -> Any:
    func = node.target
    if isinstance(func, torch._ops.OpOverload):
        if func is torch.ops.prims.convert_element_type.default:  # what the compiler makes of a cast
            return torch.ops.aten._to_copy.default(args[0], dtype=args[1])
        if func.namespace in _RUN and not func._schema.is_mutable and func._schema.returns:
            return func(*args, **kwargs)
    elif getattr(func, "__module__", "") in _ON_NUMBERS:
        return func(*args, **kwargs)
    raise NotImplementedError(f"{func} is not an operation of PyTorch's that only computes")


def _site(session: Session, node: Node, told: set[str]) -> str:
    """The program's line, whose frames are recorded as those of any line are."""
    if not node.lines:
        return ""
    first = node.lines[0]
    site = f"{file_name(first.file)}:{first.line}"
    if site not in told and session.recorder is not None:
        told.add(site)
        for depth, line in enumerate(node.lines[:_MOST_FRAMES]):
            begin, code = lines_around(line.file, line.line)
            session.recorder.frame(site, depth, line.file, line.line, line.function, begin, code)
    return site
