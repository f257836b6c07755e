# SPDX-License-Identifier: Apache-2.0
"""Calls that are a phase of their own: of a loss scaler, and of clipping. Each is handed on once, between two calls of
the listeners."""
from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _library as lib

if TYPE_CHECKING:
    from nanhunt._session import Session


def bind(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; {} where they do not fit (the original will say so)."""
    try:
        bound = inspect.signature(original).bind(*args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


_in_call: set[tuple[int, str]] = set()  # a derived method that calls the one it overrides is one call


def in_phase(session: Session, phase: int, before: tuple[Any, ...],
              after: Callable[[Any, BaseException | None], tuple[Any, ...]], run: Callable[[], Any]) -> Any:
    was, session.state.phase = session.state.phase, phase
    session.notify(*before)
    result, error = None, None
    try:
        result = run()
        return result
    except BaseException as raised:
        error = raised
        raise
    finally:
        session.notify(*after(result, error))
        session.state.phase = was


def once(name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    def outermost(session: Session, original: Callable[..., Any], args: tuple[Any, ...],
                  kwargs: dict[str, Any]) -> Any:
        key = (id(args[0]) if args else 0, name)
        if key in _in_call:
            return original(*args, **kwargs)
        _in_call.add(key)
        try:
            return wrapper(session, original, args, kwargs)
        finally:
            _in_call.discard(key)

    return outermost


def scale(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scaler = args[0]
    loss = args[1] if len(args) > 1 else kwargs.get("outputs")
    session.begins_work()
    return in_phase(session, lib.SCALE, ("before_scale", scaler, loss), lambda r, e: ("after_scale", scaler, r),
                     lambda: original(*args, **kwargs))


def unscale(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scaler = args[0]
    optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
    return in_phase(session, lib.UNSCALE, ("before_unscale", scaler, optimizer),
                     lambda r, e: ("after_unscale", scaler, optimizer, e), lambda: original(*args, **kwargs))


def update(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scaler = args[0]
    session.scale_was_given = (args[1] if len(args) > 1 else kwargs.get("new_scale")) is not None
    result = in_phase(session, lib.UPDATE, ("before_update", scaler), lambda r, e: ("after_update", scaler, e),
                       lambda: original(*args, **kwargs))
    session.after_update()
    return result


def clip(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = bind(original, args, kwargs)
    parameters = bound.get("parameters", ())
    if isinstance(parameters, torch.Tensor):
        parameters = (parameters,)
    elif not hasattr(parameters, "__iter__"):  # the original will say so
        return original(*args, **kwargs)
    elif not isinstance(parameters, (list, tuple)):
        # A generator is used up by one reading: the original gets the list.
        parameters = list(parameters)
        bound["parameters"] = parameters
        args, kwargs = (), bound
        original = functools.partial(original)
    limit = bound.get("max_norm", bound.get("clip_value", 0.0))
    number = float(limit) if isinstance(limit, (int, float)) else 0.0
    name = getattr(original, "__name__", "clip_grad")
    return in_phase(session, lib.CLIP, ("before_clip", parameters, name, number), lambda r, e: ("after_clip", r),
                     lambda: original(*args, **kwargs))
