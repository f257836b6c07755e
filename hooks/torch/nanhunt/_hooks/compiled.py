# SPDX-License-Identifier: Apache-2.0
"""Graphs that torch.compile made: each call of one is heard as one op, by what it is given and what it gives. What runs
inside is not heard: the compiler has fused it, and parts of it would be taken for the whole."""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._tap.plain import PLAIN
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session

_PLACES = ("torch._inductor.output_code", "torch._inductor.codecache")  # from 2.6 on, and before
Put = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], object]
_expects = False  # compilations begin and end with a call of ours


def expect(watching: Callable[[], Session | None], put: Put) -> None:
    """Inductor is imported by the first compilation: its graphs are met when that ends. `put`: places a patch."""
    global _expects
    callback = sys.modules.get("torch._dynamo.callback")
    if callback is not None and not _expects:
        _expects = True
        callback.on_compile_start(lambda *_: _begin_compiling(watching))
        callback.on_compile_end(lambda *_: _end_compiling(watching, put))
    _meet_graphs(watching, put)


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


def _heard(watching: Callable[[], Session | None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(graph: Any, inputs: Any) -> Any:
        session = watching()
        tap = session.tap if session is not None else None
        if session is None or tap is None or not tap.is_on or not session.hears(trains=False):
            return original(graph, inputs)
        written = _begin(session, graph, inputs)
        try:
            with unheard():
                result = original(graph, inputs)
        except BaseException:
            if session.tap is tap:
                tap.drop_graph()
            raise
        _end(session, result, written)
        return result

    return called


def _begin(session: Session, graph: Any, inputs: Any) -> list[torch.Tensor]:
    """What it writes of what it is given, which alone is kept: a graph frees the rest while it runs."""
    tap = session.tap
    if tap is None:
        return []
    try:
        tap.begin_graph([t for t in inputs if type(t) in PLAIN])
        writes = getattr(graph, "mutated_input_idxs", None) or ()
        return [inputs[i] for i in writes if type(inputs[i]) in PLAIN]
    except Exception as error:
        session.failed(error, "a compiled graph")
        if session.tap is not None:  # too many errors close the watch
            session.tap.begin_graph(())
        return []


def _end(session: Session, result: Any, written: list[torch.Tensor]) -> None:
    try:
        made = [t for t in result if type(t) in PLAIN] if isinstance(result, (list, tuple)) else []
        if session.tap is not None:
            session.tap.end_graph(made, written)
    except Exception as error:
        session.failed(error, "a compiled graph")
