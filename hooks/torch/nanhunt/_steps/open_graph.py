# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that made something bad of what was not: its ops, one by one, of the inputs that it had, heard by
the tap as those of an eager program. Nothing of the program's runs, and nothing of the run is written."""
from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.graphs import Graph, Node, Ref
from nanhunt._names import plain_path
from nanhunt._pytorch import below_autograd, no_autocast
from nanhunt._steps.graph_run import GraphRun, Opened, is_bad, sources_of
from nanhunt._steps.trial import OTHER_KERNEL, WIDER, first_bad
from nanhunt._tap.places import call_site
from nanhunt._tap.plain import DTYPES, PLAIN
from nanhunt._tap.tap_library import unheard
from nanhunt._tap.traced import site_of
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._session import Session

_IN_VAIN = 2             # steps in which a graph is opened though nothing was bad inside
_NEAR = 8                # steps: infinities that come again within so many are one streak, which may be meant
_SECONDS = 30.0          # that opening graphs may take in a run
_SHARE = 0.01            # of a run that it may take, where that is more
_ROOM = 256 << 20        # bytes of inputs that are kept while a graph runs, which may free them
_ROOM_COPIES = 64 << 20  # ... and of those that it writes over
GIVEN_NAN, INFINITE = 2, 3  # of CompiledGraphs::Verdict of the tap
_ENOUGH = "It was looked into before, as often and as long as is done."

Results = tuple[Sequence[Any], Sequence["tuple[int, torch.Tensor]"]]  # of a graph; and of its inputs what it wrote


class Inputs:
    """Of a graph that runs, kept until it has."""

    __slots__ = ("graph", "given", "tensors", "addresses", "lack", "versions")

    def __init__(self, graph: Graph | None, given: Sequence[Any], lack: str = "") -> None:
        self.graph, self.given = graph, given
        self.tensors = [t for t in given if type(t) in PLAIN]
        self.addresses = array("q", [t._cdata for t in self.tensors])
        self.lack = lack  # why it is not opened; "" without a graph: nobody has seen its operations
        self.versions: list[int] = []

    @property
    def may_open(self) -> bool:
        return self.graph is not None and not self.lack

    def versions_now(self) -> list[int]:
        return [t._version for t in self.tensors]


class GraphOpener:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._in_vain: WeakIdDict[set[int]] = WeakIdDict()  # steps, by graph
        self._infinite: WeakIdDict[tuple[int, int]] = WeakIdDict()  # the last step, and which of its streak it was
        self._lacks: WeakIdDict[str] = WeakIdDict()  # why a graph is not opened, by what it is given
        self._seconds, self._began = 0.0, time.monotonic()
        self._step = -1
        # Of forwards that are done, by graph, until their backward has run, or the step is over. Of two of one graph it
        # is not known to which a backward belongs.
        self._forwards: dict[int, list[Inputs]] = {}

    def keep(self, graph: Graph | str, inputs: Sequence[Any]) -> Inputs:
        if self._step != self.session.state.step:
            self._step = self.session.state.step
            self._forwards.clear()
        if isinstance(graph, str):
            return Inputs(None, (), graph or _why_not(inputs))
        lack = graph.lack or self._lacks.get(id(graph))
        if lack is None:
            lack = _why_not(inputs, graph)
            if not any(isinstance(t, int) for t in inputs):  # it has the same sizes each time
                self._lacks.set(graph, lack)
        if lack:
            return Inputs(graph, (), lack)
        if self._is_enough(graph):
            return Inputs(graph, (), _ENOUGH)
        if not graph.overwritten:
            return Inputs(graph, list(inputs))
        with unheard(), torch.no_grad():
            return Inputs(graph, [t.detach().clone() if i in graph.overwritten and isinstance(t, torch.Tensor) else t
                                  for i, t in enumerate(inputs)])

    def _is_enough(self, graph: Graph) -> bool:
        steps = self._in_vain.get(id(graph), ())
        return len(steps) >= _IN_VAIN and self.session.state.step not in steps or self._seconds_left() < 0

    def _seconds_left(self) -> float:
        return max(_SECONDS, _SHARE * (time.monotonic() - self._began)) - self._seconds

    def _is_infinite_again(self, graph: Graph) -> bool:
        """Of steps in a row in which infinities come out of it, the 1st, 2nd, 4th, 8th and so on are looked into."""
        step, (last, streak) = self.session.state.step, self._infinite.get(id(graph), (-_NEAR, 0))
        if step != last:
            streak = streak + 1 if step - last < _NEAR else 1
            self._infinite.set(graph, (step, streak))
        return streak & (streak - 1) != 0

    def open(self, inputs: Inputs, verdict: int, results: Results) -> Opened | None:
        """`results`: what it gave and wrote. Where all that is bad in a backward was saved by its forward, that one
        is opened."""
        assert inputs.graph is not None
        if verdict == INFINITE and self._is_infinite_again(inputs.graph):
            inputs.lack = _ENOUGH
            return None
        if verdict == GIVEN_NAN:
            return self._open_forward(inputs.graph)
        opened = self._open_forward(inputs.graph) if self._is_given_all(inputs.graph, inputs.given) else None
        return opened if opened is not None and opened.bad else self._open(inputs, results)

    def _is_given_all(self, graph: Graph, given: Sequence[Any]) -> bool:
        """Whether what is bad in a backward, computed op by op, came of infinities that it was given alone."""
        if not graph.is_backward:
            return False
        with self._aside() as ends, unheard():
            if not any(is_bad(t) for t in given):
                return False
            run = GraphRun(graph, given, ends).run()
        return bool(run.bad) and not run.began_inside

    @contextmanager
    def _aside(self) -> Iterator[float]:
        """Where a graph is computed that the program does not know of. Until when it may be."""
        random, began = torch.get_rng_state(), time.monotonic()
        try:
            with torch.no_grad(), no_autocast(), below_autograd():
                yield began + max(min(self._seconds_left(), _SECONDS), 1.0)
        finally:
            torch.set_rng_state(random)
            self._seconds += time.monotonic() - began

    def _open_forward(self, backward: Graph) -> Opened | None:
        forwards = self._forwards.get(id(backward.forward), [])
        if len(forwards) != 1 or forwards[0].versions != forwards[0].versions_now():
            return None
        forward, state = forwards[0], self.session.state
        if forward.graph is None or self._is_enough(forward.graph):
            return None
        phase, state.phase = state.phase, lib.FORWARD
        try:
            return self._open(forward, None)
        finally:
            state.phase = phase

    def _open(self, inputs: Inputs, results: Results | None) -> Opened:
        graph, session, tap = inputs.graph, self.session, self.session.tap
        assert tap is not None and graph is not None
        prefixes = _prefixes(session, inputs, graph)
        here = call_site() if results is not None else ""  # for the optimizers of PyTorch
        state, phase = session.state, session.state.phase

        def place(node: Node) -> None:
            path = _module(node, prefixes)
            if not path and not session.roots and node.root != "self":  # no module is called but inside of graphs
                path = plain_path(node.root, node.path)
            tap.place(path, site_of(node.frames) or here)
            state.phase = lib.FORWARD if node.is_computed_again else phase

        tap.library.silence(1)
        try:
            with self._aside() as ends:
                is_fused, only_fused = False, None
                if graph.keeps_wide:
                    random, began = torch.get_rng_state(), time.monotonic()
                    third = (ends - began) / 3  # at most, for each
                    with unheard():
                        rounded = GraphRun(graph, inputs.given, began + third).run()
                        torch.set_rng_state(random)
                        fused = GraphRun(graph, inputs.given, began + 2 * third, fused=True).run()
                        is_fused = _is_fused_otherwise(graph, rounded, fused, results)
                    torch.set_rng_state(random)
                    only_fused = next(((graph.nodes[number], birth) for number, birth in fused.births.items()
                                       if number not in rounded.births), None)
                opened = GraphRun(graph, inputs.given, ends, is_fused, place).run()
                opened.only_fused = only_fused
        finally:
            state.phase = phase
            tap.place(None)
            tap.library.silence(0)
        if not opened.bad:
            self._in_vain.set_new(graph, set())
            self._in_vain[id(graph)].add(session.state.step)
        return opened

    def end(self, inputs: Inputs, verdict: int) -> None:
        """The graph has run, or nothing more is done about it."""
        graph = inputs.graph
        assert graph is not None
        if graph.is_backward:
            self._forwards.pop(id(graph.forward), None)
        elif not verdict and graph.is_forward:
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
        lack, at, number, dtype = inputs.lack, -1, 0.0, torch.float32
        if opened is not None:
            lack = opened.lack or (
                "It draws random numbers: computed op by op with others, it is finite." if opened.graph.draws else
                "It may read memory that nothing has written: computed op by op with 0 there, it is finite."
                if opened.graph.reads_memory else "")
            with unheard():
                for ours, its in () if lack else opened.beside(results, written):
                    at = first_bad(its) if type(its) in PLAIN else -1
                    if at >= 0 and isinstance(ours, torch.Tensor) and ours.shape == its.shape:
                        number, dtype = float(ours.reshape(-1)[at]), its.dtype
                        break
                    at = -1
            if at < 0 and not lack:
                return
        step = self.session.state.step
        recorder.probe(seq=seq, step=step, mode=OTHER_KERNEL, dtype=DTYPES[dtype], ops=1, ran=int(at >= 0), nan=0,
                       pos_inf=0, neg_inf=0, flat_index=at, number=number, text=lack)
        if at >= 0 and opened is not None and opened.only_fused is not None:
            node, birth = opened.only_fused
            name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else node.name
            recorder.probe(seq=seq, step=step, mode=WIDER, dtype=lib.F32, ops=len(opened.graph.nodes),
                           ran=1, nan=birth.nan, pos_inf=birth.pos_inf, neg_inf=birth.neg_inf, flat_index=-1,
                           text=f"{name} at {site_of(node.frames)}" if node.frames else name)


def _why_not(inputs: Sequence[Any], graph: Graph | None = None) -> str:
    """A graph that is given these is not opened; "": it may be."""
    if any(isinstance(t, torch.Tensor) and (type(t) not in PLAIN or not t.is_cpu) for t in inputs):
        return "It is not looked into on a device, or where tensors are of a class of their own."
    if graph is None:
        return ""
    sizes = [t.numel() * t.element_size() if isinstance(t, torch.Tensor) else 0 for t in inputs]
    if sum(sizes) > _ROOM or sum(sizes[i] for i in graph.overwritten) > _ROOM_COPIES:
        return "What it was given is too large to be kept."
    return ""


def _is_fused_otherwise(graph: Graph, rounded: Opened, fused: Opened, results: Results | None) -> bool:
    """Whether a 16-bit op is bad as the program is written, and was not in the fused kernel: what it made was too large
    to be stored, was kept in fp32, and is not what was bad in the end."""
    if rounded.lack or fused.lack or not fused.births:
        return False
    stored = sources_of(graph, [end for end, birth in fused.births.items() if birth.is_stored])
    if all(number in fused.births or number in stored for number in rounded.births):
        return False
    return _is_bad_alike(fused, results) or not _is_bad_alike(rounded, results)


def _is_bad_alike(opened: Opened, results: Results | None) -> bool:
    """Whether the same elements are bad as in what the graph gave. None: that is not at hand."""
    for ours, its in opened.beside(*results) if results is not None else ():
        if type(ours) in PLAIN and type(its) in PLAIN and its.is_floating_point() and ours.shape == its.shape and (
                not torch.equal(ours.isfinite(), its.isfinite())):
            return False
    return True


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
    return plain_path(prefixes[node.root], node.path) if node.root in prefixes else ""
