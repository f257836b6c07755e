# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that made something bad of what was not: its ops, one by one, of the inputs that it had, heard by
the tap as those of an eager program. Nothing of the program's runs, and nothing of the run is written."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

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

_MOST = 64               # times a graph is opened
_ROOM = 256 << 20        # bytes of inputs that are kept while a backward runs, which would free them
_ROOM_COPIES = 64 << 20  # ... and of those that a graph writes over
_RUN = ("aten", "prims", "inductor_prims")  # whose ops are run: others are the program's
_ON_NUMBERS = ("_operator", "operator", "math", "torch")
_MOST_FRAMES = 8


class Inputs:
    """Of a graph that runs, kept until it has."""

    __slots__ = ("graph", "given", "lack")

    def __init__(self, graph: Graph, given: Sequence[Any], lack: str = "") -> None:
        self.graph, self.given = graph, given
        self.lack = lack  # why it will not be opened

    def tensors(self) -> list[torch.Tensor]:
        return [t for t in self.given if isinstance(t, torch.Tensor)]


class Opened(NamedTuple):
    made: list[torch.Tensor]  # by its last ops, in the order of its results where there is no lack
    bad: list[torch.Tensor]   # of these
    lack: str                 # why it was left before its end


def keep_inputs(graph: Graph | None, inputs: Sequence[Any]) -> Inputs | None:
    """None: nothing is known of the graph."""
    if graph is None:
        return None
    if graph.lack:
        return Inputs(graph, (), graph.lack)
    if graph.opened >= _MOST:
        return Inputs(graph, (), "It was looked into before, in as many steps as is done.")
    if not graph.called:
        graph.called = True
        if any(isinstance(t, torch.Tensor) and (type(t) not in PLAIN or not t.is_cpu) for t in inputs):
            graph.lack = "It is not looked into on a device, or where tensors are of a class of their own."
            return Inputs(graph, (), graph.lack)
    if graph.is_backward or graph.overwritten:
        sizes = [t.numel() * t.element_size() if isinstance(t, torch.Tensor) else 0 for t in inputs]
        copies = sum(sizes[i] for i in graph.overwritten)
        if copies > _ROOM_COPIES or graph.is_backward and sum(sizes) > _ROOM:
            return Inputs(graph, (), "What it was given is too large to be kept.")
    if not graph.overwritten:
        return Inputs(graph, list(inputs))
    return Inputs(graph, [t.detach().clone() if i in graph.overwritten and isinstance(t, torch.Tensor) else t
                          for i, t in enumerate(inputs)])


def open_graph(session: Session, inputs: Inputs) -> Opened:
    graph, tap = inputs.graph, session.tap
    assert tap is not None
    graph.opened += 1
    root = _root(session, inputs)
    random = torch.get_rng_state()
    told: set[str] = set()
    results: dict[int, Any] = {}
    outputs: Any = ()
    lack = ""
    given = iter(inputs.given)
    try:
        for number, node in enumerate(graph.nodes):
            if node.kind == "placeholder":
                results[number] = next(given)
            elif node.kind == "get_attr":
                results[number] = graph.constants[node.target]
            elif node.kind == "output":
                outputs = _filled(node.args, results)
            else:
                tap.place(plain_path(root, node.path) if node.path else "", _site(session, node, told))
                results[number] = _run(node, results)
            for result in node.last_of:
                results.pop(result, None)
    except Exception as error:
        lack = f"Not all of it could be computed op by op: {error}"[:300]
        outputs = list(results.values())
    finally:
        tap.place(None)
        torch.set_rng_state(random)
    with unheard():
        made = [t for _, t in tensors_in(outputs)]
        return Opened(made, [t for t in made if type(t) in PLAIN and _first_bad(t) >= 0], lack)


def _first_bad(t: torch.Tensor) -> int:
    """Where the first number stands that is not finite, row-major; -1: there is none."""
    bad = (~torch.isfinite(t)).reshape(-1).nonzero() if t.is_floating_point() else t.new_empty(0)
    return int(bad[0]) if bad.numel() else -1


def report_opened(session: Session, seq: int, inputs: Inputs | None, opened: Opened | None,
                  results: Sequence[torch.Tensor]) -> None:
    """Of a graph's row: that its ops, one by one, are finite where its results are not, or why that is not known: ""
    that it came out of a cache."""
    if session.recorder is None or opened is not None and opened.bad:
        return
    lack = opened.lack if opened is not None else "" if inputs is None else inputs.lack
    ran, at, number, dtype = opened is not None and not lack, -1, 0.0, torch.float32
    with unheard():
        for ours, its in zip(opened.made if opened is not None and ran else (), results):
            if type(its) in PLAIN and ours.shape == its.shape and (at := _first_bad(its)) >= 0:
                number, dtype = float(ours.reshape(-1)[at]), its.dtype
                break
    session.recorder.probe(seq=seq, step=session.step, mode=OTHER_KERNEL, dtype=DTYPES[dtype], ops=1, ran=int(ran),
                           nan=0, pos_inf=0, neg_inf=0, flat_index=at, number=number, text=lack)


def _root(session: Session, inputs: Inputs) -> str:
    """The path of the module whose forward was compiled, by a parameter that is one of its modules'."""
    names = {p.data_ptr(): path for p, path in session.parameter_names.items_alive() if p.numel() > 0}
    paths = [names.get(t.data_ptr()) if isinstance(t, torch.Tensor) and t.numel() > 0 else None for t in inputs.given]
    for node in inputs.graph.nodes:
        for ref in node.args if node.path else ():
            path = paths[ref.node] if isinstance(ref, Ref) and ref.node < len(paths) else None
            module = path.rpartition(".")[0] if path else ""
            if module.endswith("." + node.path):
                return module.removesuffix("." + node.path)
    return ""


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


def _run(node: Node, results: dict[int, Any]) -> Any:
    func = node.target
    args, kwargs = _filled(node.args, results), _filled(node.kwargs, results)
    if isinstance(func, torch._ops.OpOverload):
        if func is torch.ops.aten.copy_.default:  # into what the graph was given, as it has done
            return args[1]
        if func is torch.ops.prims.convert_element_type.default:  # what the compiler makes of a cast
            return torch.ops.aten._to_copy.default(args[0], dtype=args[1])
        if func.namespace in _RUN and not func._schema.is_mutable:
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
