# SPDX-License-Identifier: Apache-2.0
"""Graphs that torch.compile made: each call of one is heard as one op, by what it is given and what it gives. What runs
inside is not heard: the compiler has fused it, and parts of it would be taken for the whole. One that makes something
bad is opened."""
from __future__ import annotations

import functools
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanhunt import _library as lib
from nanhunt._hooks.graphs import graph_of, watch_compiler
from nanhunt._modes import without_modes
from nanhunt._step_judge import HAS_GRADIENTS
from nanhunt._steps.open_graph import GraphOpener, Inputs
from nanhunt._tap.plain import PLAIN
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap

_PLACES = ("torch._inductor.output_code", "torch._inductor.codecache")  # from 2.6 on, and before
_COMPILES = ("_compile_fx_inner", "fx_codegen_and_compile")  # from 2.6 on, and before
Put = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], object]
_begins: Callable[..., None] | None = None  # what is called when a compilation begins
Step = Callable[[torch.optim.Optimizer, Any, Any], Any]  # (optimizer, arguments of its step)


class Steps(NamedTuple):
    """What is called before and after an optimizer steps."""

    before: Step
    after: Step
    running: Mapping[int, int]  # optimizers that step now, by id
    in_graphs: set[int]         # those that have stepped in a graph since the last backward


steps: Steps | None = None


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


@contextmanager
def _past_the_cache() -> Iterator[None]:
    """A graph out of PyTorch's cache of an earlier run comes without its operations: it is traced again, and Inductor's
    own cache has its kernels. Not where the program asks for that cache, or keeps what it has compiled."""
    config: Any = sys.modules.get("torch._functorch.config")
    keeps = getattr(sys.modules.get("torch._dynamo.config"), "caching_precompile", False) or (
        getattr(config, "bundled_autograd_cache", False))
    if keeps or getattr(config, "enable_autograd_cache", False) is not True or (
            "TORCHINDUCTOR_AUTOGRAD_CACHE" in os.environ):
        yield
        return
    config.enable_autograd_cache = False
    try:
        yield
    finally:
        config.enable_autograd_cache = True


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
        session = watching()
        if session is None:
            return original(*args, **kwargs)
        with suppress(Exception):
            import torch._inductor.compile_fx  # noqa: F401

            _meet_compiler(watching, put)
        with nullcontext() if session.options.level == "steps" else _past_the_cache():
            return original(*args, **kwargs)

    return called


def _heard(watching: Callable[[], Session | None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(graph: Any, inputs: Any) -> Any:
        session = watching()
        if session is None or not session.hears(trains=False):
            return original(graph, inputs)
        if (getattr(graph, "mutated_input_idxs", None) and steps is not None and not steps.running
                and session.judge.facts() & HAS_GRADIENTS and not session.is_inside()):
            stepping = without_modes(_optimizers_of, session, graph, inputs)
            if stepping:
                return _step(steps, stepping, functools.partial(_run, session, original, graph, inputs))
        return _run(session, original, graph, inputs)

    return called


def _optimizers_of(session: Session, graph: Any, inputs: Any) -> list[torch.optim.Optimizer]:
    """Optimizers that step inside of the graph: it writes parameters of theirs, and reads their gradients."""
    try:
        given = {t.data_ptr() for t in inputs if type(t) in PLAIN}
        written = {inputs[i].data_ptr() for i in graph.mutated_input_idxs if type(inputs[i]) in PLAIN} - {0}
        found = []
        for optimizer in session.tracker.alive if written else ():
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"]
                         if type(p) in PLAIN and p.grad is not None and p.data_ptr() in written]
            if gradients and all(type(g) in PLAIN and g.layout is torch.strided and g.data_ptr() in given
                                 for g in gradients):
                found.append(optimizer)
        return found
    except Exception as error:
        session.failed(error, "an optimizer in a compiled graph")
        return []


def _step(around: Steps, optimizers: Sequence[torch.optim.Optimizer], run: Callable[[], Any]) -> Any:
    begins = [one for one in optimizers if id(one) not in around.in_graphs]  # others go on, in a further graph
    for optimizer in begins:
        around.before(optimizer, (optimizer,), {})
    result = run()
    for optimizer in begins:
        around.after(optimizer, (optimizer,), {})
        around.in_graphs.add(id(optimizer))
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
        if kept.may_open and not (kept.graph is not None and kept.graph.overwritten):
            tap.begin_graph(kept.addresses, array("q", (1,)) * len(kept.addresses))
        else:
            given = [(t._cdata, kept.may_open and kept.given[i] is t) for i, t in enumerate(inputs) if type(t) in PLAIN]
            tap.begin_graph(array("q", [at for at, _ in given]), array("q", [is_kept for _, is_kept in given]))
        writes = getattr(graph, "mutated_input_idxs", None) or ()
        return [(i, inputs[i]) for i in writes if type(inputs[i]) in PLAIN], kept
    except Exception as error:
        session.failed(error, "a compiled graph")
        if session.tap is not None:  # too many errors close the watch
            session.tap.begin_graph(array("q"), array("q"))
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
                    opened = opener.open(inputs, verdict, (result, written))
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
        if seq >= 0 and inputs is not None and opener is not None and (opened is not None or not inputs.may_open):
            opener.report(seq, inputs, opened, result, written)
        if wrote and (seq >= 0 or opened is not None):
            _mark_parameters(session, tap, wrote)
    except Exception as error:
        session.failed(error, "a compiled graph")


def _mark_parameters(session: Session, tap: Tap, wrote: Sequence[torch.Tensor]) -> None:
    """Those that a bad graph has written, as they are now."""
    at = {t.data_ptr() for t in wrote} - {0}
    found = [(p, path) for p, path in session.parameter_names.items_alive() if type(p) in PLAIN and p.data_ptr() in at]
    tap.mark(tap.named(found), array("q", [lib.MARK_PARAMETER] * len(found)))


def _plain(results: Any) -> list[torch.Tensor]:
    return [t for t in results if type(t) in PLAIN] if isinstance(results, (list, tuple)) else []
