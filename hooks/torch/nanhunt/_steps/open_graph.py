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
from nanhunt._pytorch import below_autograd, no_autocast
from nanhunt._steps.trial import OTHER_KERNEL, first_bad, tensors
from nanhunt._tap.places import report_once
from nanhunt._tap.plain import DTYPES, PLAIN
from nanhunt._tap.sites import file_name
from nanhunt._tap.tap_library import unheard
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap

_IN_VAIN = 2             # steps in which a graph is opened though nothing was bad inside
_NEAR = 8                # steps: infinities that come so soon again are of one row, which may be meant
_SECONDS = 30.0          # that all of it may take in a run, whatever share of it that is; more as far as it takes
_SHARE = 0.01            # ... at most this share
_ROOM = 256 << 20        # bytes of inputs that are kept while a graph runs, which may free them
_ROOM_COPIES = 64 << 20  # ... and of those that it writes over
_RUN = ("aten", "prims", "inductor_prims")  # whose ops are run: others are the program's
_ON_NUMBERS = ("_operator", "operator", "math", "torch")
MADE_NAN, GIVEN_NAN, INFINITE = 1, 2, 3  # CompiledGraphs::Verdict of the tap
_ENOUGH = "It was looked into before, in as many steps as is done."


class Inputs:
    """Of a graph that runs, kept until it has."""

    __slots__ = ("graph", "given", "lack", "declined", "versions")

    def __init__(self, graph: Graph | None, given: Sequence[Any], lack: str = "") -> None:
        self.graph, self.given = graph, given
        self.lack = lack  # why it will not be opened; without a graph: ""
        self.declined = ""  # why it was not, though something bad came out of it
        self.versions: list[int] = []

    @property
    def may_open(self) -> bool:
        return self.graph is not None and not self.lack

    def versions_now(self) -> list[int]:
        return [t._version for t in tensors(self.given)]


@dataclass
class Opened:
    graph: Graph
    made: Sequence[Any] = ()  # as the graph gives it
    written: dict[int, Any] = field(default_factory=dict)  # into its inputs, by their number
    bad: list[torch.Tensor] = field(default_factory=list)  # of these; where it was left, of what could not be read
    lack: str = ""            # why it was left before its end


class GraphOpener:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._in_vain: WeakIdDict[set[int]] = WeakIdDict()  # steps, by graph
        self._infinite: WeakIdDict[tuple[int, int]] = WeakIdDict()  # the last step, and which of its row it was
        self._seconds, self._began = 0.0, time.monotonic()
        self._step = -1
        # Of forwards that are done, by graph, until their backward has run, or the step is over. Of two of one graph it
        # is not known to which a backward belongs.
        self._forwards: dict[int, list[Inputs]] = {}

    def keep(self, graph: Graph | str, inputs: Sequence[Any]) -> Inputs:
        if self._step != self.session.state.step:
            self._step = self.session.state.step
            self._forwards.clear()
        if any(isinstance(t, torch.Tensor) and (type(t) not in PLAIN or not t.is_cpu) for t in inputs):
            return Inputs(None, (), "It is not looked into on a device, or where tensors are of a class of their own.")
        if isinstance(graph, str):
            return Inputs(None, (), graph)
        if graph.lack:
            return Inputs(graph, (), graph.lack)
        if self._is_enough(graph):
            return Inputs(graph, (), _ENOUGH)
        sizes = [t.numel() * t.element_size() if isinstance(t, torch.Tensor) else 0 for t in inputs]
        if sum(sizes) > _ROOM or sum(sizes[i] for i in graph.overwritten) > _ROOM_COPIES:
            return Inputs(graph, (), "What it was given is too large to be kept.")
        if not graph.overwritten:
            return Inputs(graph, list(inputs))
        with unheard(), torch.no_grad():
            return Inputs(graph, [t.detach().clone() if i in graph.overwritten and isinstance(t, torch.Tensor) else t
                                  for i, t in enumerate(inputs)])

    def _is_enough(self, graph: Graph) -> bool:
        steps = self._in_vain.get(id(graph), ())
        return len(steps) >= _IN_VAIN and self.session.state.step not in steps or (
            self._seconds > max(_SECONDS, _SHARE * (time.monotonic() - self._began)))

    def _is_infinite_again(self, graph: Graph) -> bool:
        """Of steps in a row in which infinities come out of it, the 1st, 2nd, 4th, 8th and so on are looked into."""
        step, (last, row) = self.session.state.step, self._infinite.get(id(graph), (-_NEAR, 0))
        if step != last:
            row = row + 1 if step - last < _NEAR else 1
            self._infinite.set(graph, (step, row))
        return row & (row - 1) != 0

    def open(self, inputs: Inputs, verdict: int) -> Opened | None:
        """A backward that was given NaN by its forward has that one opened."""
        assert inputs.graph is not None
        if verdict == INFINITE and self._is_infinite_again(inputs.graph):
            inputs.declined = _ENOUGH
            return None
        if verdict != GIVEN_NAN:
            return self._open(inputs, verdict)
        forwards = self._forwards.get(id(inputs.graph.forward), [])
        if len(forwards) != 1 or forwards[0].versions != forwards[0].versions_now():
            return None
        forward, state = forwards[0], self.session.state
        if forward.graph is None or self._is_enough(forward.graph):
            return None
        phase, state.phase = state.phase, lib.FORWARD
        try:
            return self._open(forward, verdict)
        finally:
            state.phase = phase

    def _open(self, inputs: Inputs, verdict: int) -> Opened:
        graph, tap = inputs.graph, self.session.tap
        assert tap is not None and graph is not None
        opened, began = Opened(graph), time.monotonic()
        random = torch.get_rng_state()
        tap.library.silence(1)
        try:
            with torch.no_grad(), no_autocast(), below_autograd():
                _run_nodes(self.session, tap, inputs, opened, began + max(_SECONDS - self._seconds, 1.0))
        finally:
            tap.place(None)
            tap.library.silence(0)
            torch.set_rng_state(random)
            self._seconds += time.monotonic() - began
        if not opened.lack:
            with unheard():
                opened.bad = [t for t in (*opened.made, *opened.written.values()) if _first_bad(t) >= 0]
        if not opened.bad:
            self._in_vain.set_new(graph, set())
            self._in_vain[id(graph)].add(self.session.state.step)
        return opened

    def end(self, inputs: Inputs, verdict: int) -> None:
        """The graph has run, or nothing more is done about it."""
        graph = inputs.graph
        if graph is None or not inputs.may_open:
            return
        if graph.is_backward:
            self._forwards.pop(id(graph.forward), None)
        elif not verdict and not graph.is_inference:
            inputs.versions = inputs.versions_now()
            self._forwards.setdefault(id(graph), []).append(inputs)
            del self._forwards[id(graph)][2:]

    def report(self, seq: int, inputs: Inputs, opened: Opened | None, results: Sequence[Any],
               written: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Writes the probe of a graph's row: that its ops, one by one, are finite where its results are not, or why
        that is not known. `written`: of its inputs, with their numbers."""
        recorder = self.session.recorder
        if recorder is None:
            return
        if opened is not None and (opened.graph is not inputs.graph or opened.bad and not opened.lack):
            return
        lack, at, number, dtype = inputs.lack or inputs.declined, -1, 0.0, torch.float32
        if opened is not None:
            lack = opened.lack or (
                "It draws random numbers: computed op by op with others, it is finite." if opened.graph.draws else "")
            with unheard():
                pairs = [*zip(opened.made, results), *((opened.written.get(i), t) for i, t in written)]
                for ours, its in () if lack else pairs:
                    at = _first_bad(its)
                    if at >= 0 and isinstance(ours, torch.Tensor) and ours.shape == its.shape:
                        number, dtype = float(ours.reshape(-1)[at]), its.dtype
                        break
                    at = -1
            if at < 0 and not lack:
                return
        recorder.probe(seq=seq, step=self.session.step, mode=OTHER_KERNEL, dtype=DTYPES[dtype], ops=1, ran=int(at >= 0),
                       nan=0, pos_inf=0, neg_inf=0, flat_index=at, number=number, text=lack)


def _first_bad(t: Any) -> int:
    return first_bad(t) if type(t) in PLAIN else -1


def _run_nodes(session: Session, tap: Tap, inputs: Inputs, opened: Opened, ends: float) -> None:
    graph, results = opened.graph, dict[int, Any]()
    prefixes, given = _prefixes(session, inputs, graph), dict(zip(graph.inputs, inputs.given))
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
                tap.place(_module(node, prefixes), _site(node))
                results[number] = _run(node, args, kwargs)
            except Exception as error:
                opened.lack = f"Not all of it could be computed op by op: {error}"[:300]
                with unheard():  # what is bad is handed on by the op that is left out
                    opened.bad = [t for t in tensors([args, list(kwargs.values())]) if _first_bad(t) >= 0]
                return
        for result in node.last_of:
            results.pop(result, None)


def _prefixes(session: Session, inputs: Inputs, graph: Graph) -> dict[str, str]:
    """The path of each module whose forward was compiled, by the name that the compiler has for it: a parameter of one
    of its modules says so."""
    names = {_address(p): path for p, path in session.parameter_names.items_alive()}
    owners = {number: names[_address(t)].rpartition(".")[0] for number, t in zip(graph.inputs, inputs.given)
              if _address(t) in names and _address(t) != 0}
    found = dict(graph.forward.prefixes) if graph.forward is not None else {}
    for node in graph.nodes:
        for ref in node.args if node.root and node.root not in found else ():
            owner = owners.get(ref.node) if isinstance(ref, Ref) else None
            if owner is not None and f".{owner}".endswith(f".{node.path}" if node.path else ""):
                found[node.root] = owner[:len(owner) - len(node.path)].rstrip(".")
    graph.prefixes = found
    return found


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


def _site(node: Node) -> str:
    """The program's line, whose frames are recorded as those of any line are."""
    if not node.frames:
        return ""
    file, line, _ = node.frames[0]
    site = f"{file_name(file)}:{line}"
    report_once(site, node.frames)
    return site
