# SPDX-License-Identifier: Apache-2.0
"""Calls that are a phase of their own: of a loss scaler, and of clipping. Each is handed on once, between two calls of
the listeners."""
from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _library as lib
from nanhunt._hooks.scaler import held_back

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


def in_phase(session: Session, phase: int, name: str, given: tuple[Any, ...], original: Callable[..., Any],
             args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Listeners hear before_`name` with what is given, and after_`name` with that, the result and what was raised."""
    was, session.state.phase = session.state.phase, phase
    session.notify(f"before_{name}", *given)
    result, error = None, None
    try:
        result = original(*args, **kwargs)
        return result
    except BaseException as raised:
        error = raised
        raise
    finally:
        session.notify(f"after_{name}", *given, result, error)
        session.state.phase = was


def scale(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    session.begins_work()
    loss = args[1] if len(args) > 1 else kwargs.get("outputs")
    return in_phase(session, lib.SCALE, "scale", (args[0], loss), original, args, kwargs)


def unscale(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
    return in_phase(session, lib.UNSCALE, "unscale", (args[0], optimizer), original, args, kwargs)


stepping = 0  # calls that are inside of GradScaler.step


def step(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its phase is of what it does before the optimizer runs."""
    global stepping
    scaler, optimizer = args[0], args[1] if len(args) > 1 else kwargs.get("optimizer")
    session.at_boundary(optimizer)
    session.optimizer_ran = False
    stepping += 1
    try:
        result = in_phase(session, lib.UNSCALE, "scaler_step", (scaler, optimizer), original, args, kwargs)
    finally:
        stepping -= 1
    try:
        skipped = bool(held_back(scaler, optimizer, session.optimizer_ran))  # None: known later
    except Exception as mistake:
        session.failed(mistake, "scaler step")
        skipped = not session.optimizer_ran
    session.passed_boundary(optimizer, skipped, scaler)
    return result


def update(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = (args[1] if len(args) > 1 else kwargs.get("new_scale")) is not None
    result = in_phase(session, lib.UPDATE, "update", (args[0], given), original, args, kwargs)
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
    limit = bound.get("max_norm", bound.get("clip_value", 0.0))
    number = float(limit) if isinstance(limit, (int, float)) else 0.0
    return in_phase(session, lib.CLIP, "clip", (parameters, number), original, args, kwargs)
