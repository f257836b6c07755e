# SPDX-License-Identifier: Apache-2.0
"""Graphs that torch.compile made: each call of one is heard as one op, by what it is given and what it gives. What runs
inside is not heard: the compiler has fused it, and parts of it would be taken for the whole. One that makes something
bad is opened."""
from __future__ import annotations

import functools
import sys
import weakref
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.graphs import graph_of, watch_compiler
from nanhunt._modes import without_modes
from nanhunt._step_judge import HAS_GRADIENTS
from nanhunt._steps.open_graph import GraphOpener, Inputs
from nanhunt._tap.plain import PLAIN
from nanhunt._tap.tap_library import unheard
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap

_PLACES = ("torch._inductor.output_code", "torch._inductor.codecache")  # from 2.6 on, and before
_COMPILES = ("_compile_fx_inner", "fx_codegen_and_compile")  # from 2.6 on, and before
Put = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], object]
_begins: Callable[..., None] | None = None  # what is called when a compilation begins
Step = Callable[[torch.optim.Optimizer, Any, Any], Any]  # (optimizer, arguments of its step)
# What is called before and after an optimizer steps, and with its id when it has inside of a graph.
Steps = tuple[Step, Step, Callable[[int], object]]
steps: Steps | None = None
_stepped: WeakIdDict[tuple[int, list[weakref.ref[torch.optim.Optimizer]]]] = WeakIdDict()  # by graphs that write


def expect(watching: Callable[[], Session | None], put: Put) -> None:
    """Inductor is imported by the first compilation: its graphs are met when that ends. `put`: places a patch."""
    global _begins
    callback = sys.modules.get("torch._dynamo.callback")
    handler = getattr(callback, "callback_handler", None)
    if callback is not None and handler is not None and _begins not in handler.start_callbacks:
        _begins = callback.on_compile_start(lambda *_: _begin_compiling(watching))
        callback.on_compile_end(lambda *_: _end_compiling(watching, put))
        put(sys.modules["torch._dynamo"], "reset", functools.partial(_around_reset, watching, put))
    _meet_graphs(watching, put)
    _meet_compiler(watching, put)


def _around_reset(watching: Callable[[], Session | None], put: Put,
                   original: Callable[..., Any]) -> Callable[..., Any]:
    """Around torch._dynamo.reset, which forgets callbacks: ours are registered again."""
    @functools.wraps(original)
    def reset(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if watching() is not None:
            with suppress(Exception):
                expect(watching, put)
        return result

    return reset


def _begin_compiling(watching: Callable[[], Session | None]) -> None:
    """What a compiler computes, of constants say, is nothing of the program's. The tap stays on meanwhile: it is among
    the dispatch keys that a graph is guarded by."""
    session = watching()
    if session is not None:
        session.state.compiling = 1


def _end_compiling(watching: Callable[[], Session | None], put: Put) -> None:
    session = watching()
    if session is not None:
        session.state.compiling = 0
    _meet_graphs(watching, put)


def _meet_graphs(watching: Callable[[], Session | None], put: Put) -> None:
    for place in _PLACES:
        kind = getattr(sys.modules.get(place), "CompiledFxGraph", None)
        if kind is not None and kind.__module__ == place and watching() is not None:
            put(kind, "__call__", functools.partial(_heard, watching))


def _meet_compiler(watching: Callable[[], Session | None], put: Put) -> None:
    """Before its first graph: Inductor is imported by who calls it."""
    inductor: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    if inductor is not None and "__call__" in vars(inductor):
        put(inductor, "__call__", functools.partial(_inductor_called, watching, put))
    compiler = sys.modules.get("torch._inductor.compile_fx")
    for name in _COMPILES:
        if watching() is not None and hasattr(compiler, name):
            put(compiler, name, watch_compiler)
            return


def _inductor_called(watching: Callable[[], Session | None], put: Put,
                     original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if watching() is not None:
            with suppress(Exception):
                import torch._inductor.compile_fx  # noqa: F401

                _meet_compiler(watching, put)
        return original(*args, **kwargs)

    return called


def _heard(watching: Callable[[], Session | None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(graph: Any, inputs: Any) -> Any:
        session = watching()
        if session is None or not session.hears(trains=False):
            return original(graph, inputs)
        if getattr(graph, "mutated_input_idxs", None) and session.judge.facts() & HAS_GRADIENTS:
            stepping = without_modes(_optimizers_of, session, graph, inputs)
            if stepping and steps is not None:
                return _step(session, stepping, steps, functools.partial(_run, session, original, graph, inputs))
        return _run(session, original, graph, inputs)

    return called


def _optimizers_of(session: Session, graph: Any, inputs: Any) -> list[torch.optim.Optimizer]:
    """Those that step inside of it, and not around it: it writes their parameters."""
    try:
        known, alive = _stepped.get(id(graph)), len(session.tracker.alive)
        if known is None or known[0] != alive:
            written = {inputs[i].data_ptr() for i in graph.mutated_input_idxs if type(inputs[i]) in PLAIN}
            known = alive, [weakref.ref(o) for o in session.tracker.alive if any(
                p.requires_grad and type(p) in PLAIN and p.data_ptr() in written
                for group in o.param_groups for p in group["params"])]
            _stepped.set(graph, known)
        found = [optimizer for optimizer in [reference() for reference in known[1]] if optimizer is not None]
        return [optimizer for optimizer in found if id(optimizer) not in session.tracker.passed]
    except Exception as error:
        session.failed(error, "an optimizer in a compiled graph")
        return []


def _step(session: Session, optimizers: Sequence[torch.optim.Optimizer], around: Steps,
          run: Callable[[], Any]) -> Any:
    for optimizer in optimizers:
        around[0](optimizer, (optimizer,), {})
    result = run()
    for optimizer in optimizers:
        around[1](optimizer, (optimizer,), {})
        around[2](id(optimizer))
    return result


def _run(session: Session, original: Callable[..., Any], graph: Any, inputs: Any) -> Any:
    tap = session.tap
    if tap is None or not tap.is_on:
        return original(graph, inputs)
    written, kept = without_modes(_begin, session, graph, inputs)
    try:
        with unheard():
            result = original(graph, inputs)
    except BaseException:
        kept = None  # the traceback would keep it
        if session.tap is tap:
            tap.drop_graph()
        raise
    phase = session.state.phase
    if phase == lib.DATA and kept is not None and kept.graph is not None and kept.graph.is_forward:
        session.state.phase = lib.FORWARD  # of a model that is called inside of a function that is compiled
    without_modes(_end, session, result, written, kept)
    session.state.phase = phase
    return result


Written = Sequence["tuple[int, torch.Tensor]"]  # inputs, with their numbers


def _begin(session: Session, graph: Any, inputs: Any) -> tuple[Written, Inputs | None]:
    """What it writes of what it is given, which alone is kept: a graph frees the rest while it runs. And all of it,
    where the graph may be opened."""
    tap = session.tap
    if tap is None:
        return [], None
    try:
        if session.graphs is None:
            session.graphs = GraphOpener(session)
        kept = session.graphs.keep(graph_of(graph), inputs)
        is_same = kept.may_open and not (kept.graph is not None and kept.graph.overwritten)
        tap.begin_graph(kept.addresses if is_same else array("q", [t._cdata for t in inputs if type(t) in PLAIN]),
                        kept.may_open)
        writes = getattr(graph, "mutated_input_idxs", None) or ()
        return [(i, inputs[i]) for i in writes if type(inputs[i]) in PLAIN], kept
    except Exception as error:
        session.failed(error, "a compiled graph")
        if session.tap is not None:  # too many errors close the watch
            session.tap.begin_graph(array("q"))
        return [], None


def _end(session: Session, result: Any, written: Written, inputs: Inputs | None) -> None:
    tap, opener = session.tap, session.graphs
    if tap is None:
        return
    opened, verdict = None, 0
    made: list[torch.Tensor] = []
    wrote = [t for _, t in written]
    try:
        made = _plain(result)
        if inputs is not None and inputs.graph is not None and inputs.may_open and opener is not None:
            # What is saved for backward is looked at where something is bad: backward shows the rest.
            shown = _plain(result[:inputs.graph.results])
            try:
                verdict = tap.judge_graph([*shown, *wrote], len(wrote), inputs.addresses)
                if verdict:
                    opened = opener.open(inputs, verdict, [*result, *wrote])
                else:
                    made = shown
            finally:
                opener.end(inputs, verdict)
    except Exception as error:
        session.failed(error, "the inside of a compiled graph")
    except BaseException:  # Ctrl-C
        tap.drop_graph()
        raise
    try:
        seq = tap.end_graph([*made, *wrote], len(wrote), () if opened is None else opened.bad)
        if seq >= 0 and inputs is not None and opener is not None and (
                opened is not None or inputs.declined or not inputs.may_open):
            opener.report(seq, inputs, opened, result, written)
        if wrote and (seq >= 0 or opened is not None):
            _mark_parameters(session, tap, wrote)
    except Exception as error:
        session.failed(error, "a compiled graph")


def _mark_parameters(session: Session, tap: Tap, wrote: Sequence[torch.Tensor]) -> None:
    """Those that a bad graph has written, as they are now."""
    at = {t.data_ptr() for t in wrote}
    found = [(p, path) for p, path in session.parameter_names.items_alive() if type(p) in PLAIN and p.data_ptr() in at]
    tap.mark(tap.named(found), array("q", [lib.MARK_PARAMETER] * len(found)))


def _plain(results: Any) -> list[torch.Tensor]:
    return [t for t in results if type(t) in PLAIN] if isinstance(results, (list, tuple)) else []
