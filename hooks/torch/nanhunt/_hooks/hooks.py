# SPDX-License-Identifier: Apache-2.0
"""Where nanhunt listens in PyTorch: patches that hand on what happens to the session's listeners, and change nothing.

Each patch calls the original exactly once with the arguments that were given, and hands on what it returned or raised.
Under torch.compile's tracing a patch is the original.
"""
from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _library as lib
from nanhunt import _step_judge as steps
from nanhunt._hooks import calls, compiled, endings, launched_kernels, phases
from nanhunt._hooks.dynamo import hide_function, register_with_dynamo
from nanhunt._hooks.frames import take_frames_off
from nanhunt._hooks.functions import function_around
from nanhunt._hooks.patches import Patches
from nanhunt._hooks.root_names import LOOK_EVERY, TRANSPARENT, enter_other, forget_parents, name_root
from nanhunt._hooks.scaler import factor_of, unread
from nanhunt._leaves import begin_grad, find_leaves
from nanhunt._listener import RootCall
from nanhunt._modes import modes_aside, without_modes
from nanhunt._nested import given_at, tensors_given
from nanhunt._pytorch import compiler as _compiler
from nanhunt._pytorch import dispatch_modes as _dispatch_modes
from nanhunt._pytorch import function_modes as _function_modes
from nanhunt._pytorch import graph_task_id as _graph_task_id
from nanhunt._pytorch import is_autocast_on
from nanhunt._pytorch import is_traced as _is_traced
from nanhunt._pytorch import tracing_state as _tracing
from nanhunt._step_mode import StepMode
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._session import Session

_session: Session | None = None
_this_thread = threading.get_ident
_patches = Patches()
_scalers: weakref.WeakSet[type] = weakref.WeakSet()  # classes derived from GradScaler, with methods of their own

_root: RootCall | None = None  # the one that runs
_follow = calls.follow         # what becomes of calls inside of it
_calls = 0                     # root calls of this step
_aside: torch.nn.Module | None = None  # a module that is called with gradients off
_runs_aside = False          # ... now
_step_of_calls = -1
_had_backward = False          # since the last root call
_in_backward = 0
_phase_before = lib.DATA       # the backward that runs
# Whether a module has trainable parameters, of its own or below.
_is_root: WeakIdDict[bool] = WeakIdDict()


def install(session: Session) -> None:
    """Points the patches at this session; puts them in place the first time."""
    global _session
    _session = session
    session.is_inside = is_inside  # type: ignore[method-assign]
    session.at_end.append(lambda: uninstall(session))
    _forget()
    _patch_modules()
    session.at_open.append(lambda: calls.call_natively(_module_called, _call_module))
    patch(torch, "compile", _compiles, trains=False)
    _expect()
    patch(torch.autograd, "backward", _backward)
    patch(torch.autograd, "grad", _grad)
    scalers = torch.amp.grad_scaler.GradScaler
    patch(scalers, "__init__", _scaler_made, trains=False)
    for kind in (scalers, *_scalers):
        _patch_scaler(kind)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        patch(torch.nn.utils.clip_grad, name, phases.clip)
        patch(torch.nn.utils, name, phases.clip)
    patch(torch.optim.Optimizer, "__init__", _optimizer_made, trains=False)
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        patch(kind, "zero_grad", _cleared)
    profile = getattr(torch.autograd.profiler, "profile", None)
    if session.options.kernels and hasattr(profile, "_prepare_trace"):
        _patches.put(profile, "_prepare_trace", _profiler)
    _patches.hook_steps(_before_step, _after_step)
    compiled.steps = compiled.Steps(_before_step, _after_step, _steps_of, _in_graphs)
    session.in_backward = _runs_backward  # type: ignore[method-assign]
    endings.install(session)


def _runs_backward() -> bool:
    # Another thread of the program's may run a backward of its own meanwhile.
    return _in_backward > 0 and _graph_task_id() >= 0 and (
        _session is None or threading.get_ident() not in _session.threads.others)


def is_inside() -> bool:
    """Whether a root or a backward runs."""
    return _root is not None or _in_backward > 0


def uninstall(session: Session) -> None:
    """Torch is its own again, if it is this session that listens. Calls that are under way end as they began."""
    global _session
    if _session is not session:
        return
    _session = None
    _forget()
    endings.uninstall()
    _patches.take_off()
    if not _patches.has(torch.nn.Module, "__call__"):
        register_with_dynamo(_module_called, _call_module)


def _forget() -> None:
    global _root, _step_of_calls, _had_backward, _in_backward
    _root, _step_of_calls, _had_backward, _in_backward = None, -1, False, 0
    _steps_of.clear()
    _in_graphs.clear()
    calls.forget()
    _is_root.clear()
    forget_parents()


_in_scaler: set[tuple[int, str]] = set()  # a derived method that calls the one it overrides is one call


def patch(owner: Any, name: str, wrapper: Callable[..., Any], trains: bool = True, of_scaler: bool = False) -> None:
    """`trains`: only who trains calls it, so that a call in another thread is training that is not watched. A method
    `of_scaler` is heard of one that is enabled."""
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if of_scaler and not (args and getattr(args[0], "_enabled", True)) or (
                    _is_traced() or _compiler._is_compiling_flag):
                return original(*args, **kwargs)
            try:
                session, key = _session, None
                if session is None or session.threads.watched != _this_thread() and not session.hears(trains):
                    return original(*args, **kwargs)
                if of_scaler:
                    key = id(args[0]), name
                    if key in _in_scaler:
                        return original(*args, **kwargs)
                    _in_scaler.add(key)
                try:
                    return wrapper(session, original, args, kwargs)
                finally:
                    if key is not None:
                        _in_scaler.discard(key)
            except BaseException as error:
                take_frames_off(error)
                raise

        return patched

    _patches.put(owner, name, make)


def _profiler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of any thread: there is one CUPTI for all of a process."""
    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        session = _session
        if session is not None and session.kernels is not None and not (_is_traced() or _compiler._is_compiling_flag):
            try:
                session.kernels.give_way(args[0])
            except Exception as error:
                session.failed(error, "watching kernels")
        return original(*args, **kwargs)

    return patched


# Modules. The class's __call__ is patched: hooks on all modules would cost every call inside of a root several times as
# much, and torch.compile warns of them.
_call_module: Callable[..., Any] = torch.nn.Module.__call__


@functools.wraps(_call_module)
def _module_called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    global _root
    try:
        if _follow.mode == calls.STRAIGHT:
            return _call_module(module, *args, **kwargs)
        session = _session
        if session is None or _is_traced() or _compiler._is_compiling_flag or _tracing() is not None:
            return _call_module(module, *args, **kwargs)
        if not (session.threads.trains and session.threads.watched == _this_thread()) and (
                not _hears_call(session, module)):
            return _call_module(module, *args, **kwargs)
        if _root is not None or _in_backward or _runs_aside:  # in backward: a checkpoint runs it again
            places = session.places
            if places is None:
                return _call_module(module, *args, **kwargs)
            places.enter(module)
            try:
                return _call_module(module, *args, **kwargs)
            finally:
                places.exit()
        met = None
        try:
            met = session.notify("on_root_enter", session, module, args, kwargs, first=_begin_root)
        finally:
            if met is None:  # it is none; or Ctrl-C, or a mistake of ours
                _root = None
        if met is None:
            return _call_module(module, *args, **kwargs) if _aside is not module else _call_aside(
                session, module, args, kwargs)
        output = None
        try:
            calls.look_into(session.places)
            output = _call_module(module, *args, **kwargs)
            return output
        finally:
            _root_left(session, met[0], output)
    except BaseException as error:
        take_frames_off(error)
        raise


def _hears_call(session: Session, module: torch.nn.Module) -> bool:
    if not session.threads.trains and torch.is_grad_enabled():
        with modes_aside():
            if _trainable(module):
                session.threads.begin_training()
    return session.hears(trains=False)


def _call_aside(session: Session, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with gradients off: modules inside are part of it. Of one that is trained it is a validation."""
    global _aside, _runs_aside
    validates, was = bool(_is_root.get(id(module))), _follow.mode
    if validates:
        session.notify("before_validated", module)
    places = enter_other(session, module)
    calls.look_into(places)
    _runs_aside = True
    try:
        output = _call_module(module, *args, **kwargs)
    finally:
        _follow.mode, _aside, _runs_aside = was, None, False
        if places is not None:
            places.exit()
    if validates:
        session.notify("on_validated", module, output)
    return output


def _patch_modules() -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        global _call_module
        _call_module = original
        return _module_called

    _patches.put(torch.nn.Module, "__call__", make)
    # Compiled calls begin inside of it, and tracing goes past it as it does past the original.
    hide_function(_module_called)
    register_with_dynamo(_call_module, _module_called)


def _begin_root(session: Session, module: torch.nn.Module, args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> tuple[RootCall] | None:
    """The call as one of a root, for who hears that; None where it is none."""
    global _root, _calls, _step_of_calls, _had_backward, _aside
    if session.tracker.unsure:
        session.tracker.called.add(module)
    key = id(module)
    if (known := _is_root.get(key)) is None:
        session.meet()
    if session.inference.asked is not None:
        session.inference.see_updates()
    trainable, with_gradients = _trainable(module) if known is None else known, torch.is_grad_enabled()
    function = function_around() if trainable and not with_gradients else ""
    learns = trainable and (with_gradients or function != "")
    if session.state.course != lib.TRAINS and session.inference.begins_forward(module, learns, args, kwargs):
        pass
    elif not learns:
        if session.recorder is not None and (trainable or key not in _is_root and not with_gradients and
                                             type(module).__name__ not in TRANSPARENT):
            _aside = module  # a frozen one stays unknown; one without parameters is known to be none
            if trainable:
                session.begins_work(module)
                session.state.phase = lib.VALIDATION
        return None
    else:
        if session.tracker.passed:
            session.begins_work(module)
        if session.judge.is_open():
            if session.updates_by_hand():
                session.end_by_hand()
            elif not _repeats and session.gives_up():  # an optimizer calls its closure as often as it wants
                session.unfinished(lib.BY_NEXT_FORWARD)
    if session.recorder is None and session.open() is None:
        return None
    if session.state.step != _step_of_calls:
        _step_of_calls, _calls, _had_backward = session.state.step, 0, False
    if _had_backward:
        session.state.micro_batch += 1
        _had_backward = False
    session.judge.enter(steps.FORWARD)
    met = session.roots.get(key)
    name = met[1] if met is not None and met[0]() is module and session.state.step % LOOK_EVERY else (
        name_root(session, module))
    _root = call = RootCall(module, name, args, kwargs, _calls)
    session.inputs = call.inputs
    _calls += 1
    session.state.phase = lib.FORWARD
    if key not in session.met:
        session.met.set(module, True)
        launched_kernels.expect(_watching, _patches.put)
        session.notify("on_root_met", call)
    return call,


def _root_left(session: Session, call: RootCall, output: Any) -> None:
    global _root
    _root, _follow.mode = None, calls.ASK
    if session.threads.watched == _this_thread() or session.hears():
        if session.places is not None and session.tap is not None:
            session.tap.exit_root()
        if session.hears_exits or session.mode is StepMode.UNHEARD:
            session.notify("on_root_exit", call, output)
        session.state.phase = lib.FORWARD if session.state.course in lib.INFERS else lib.LOSS
        if session.state.course != lib.TRAINS:
            session.notify("on_validated", call.module, output)


def _trainable(module: torch.nn.Module) -> bool:
    """Roots have trainable parameters; loss modules have none and belong to the loss region. Wrappers are not roots."""
    known = _is_root.get(id(module))
    if known is None:
        parameters = list(module.parameters())
        known = type(module).__name__ not in TRANSPARENT and any(p.requires_grad for p in parameters)
        if known or not parameters:  # what is frozen now may be trained later
            _is_root.set(module, known)
    return known


def _watching() -> Session | None:
    return _session


def _expect() -> None:
    compiled.expect(_watching, _patches.put)
    launched_kernels.expect(_watching, _patches.put)


def _compiles(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = original(*args, **kwargs)
    try:
        _expect()
    except Exception as error:
        session.failed(error, "torch.compile")
    return result


# Gradients that are given up.
def _cleared(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not session.judge.facts() & steps.HAS_GRADIENTS or _root is not None or _in_backward or _repeats or (
            not session.drops.may_come()):
        return original(*args, **kwargs)
    with modes_aside():
        if session.updates_by_hand():
            session.end_by_hand()
        else:
            session.drops.before_clearing(args[0] if args else None)
    return original(*args, **kwargs)


# Autograd.
def _backward(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
              losses: tuple[Any, ...] | None = None, gradients: Any = None) -> Any:  # given by torch.autograd.grad
    global _in_backward, _had_backward
    if _in_backward:  # a checkpoint's own
        return original(*args, **kwargs)
    in_step, raised = bool(_steps_of), steps.RAISED if losses is None else steps.LOSS
    if losses is None:
        gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        losses = (args[0],) if args and type(args[0]) is torch.Tensor else None
    if losses is None:
        losses, args, kwargs = tensors_given(args, kwargs, 0, "tensors")
    session.notify("before_backward", session, losses, gradients, first=_begin_backward)
    session.judge.enter(steps.LOSS)
    _in_backward += 1
    try:
        result = original(*args, **kwargs)
        session.judge.enter(steps.BACKWARD)
        if not _dispatch_modes() and not _function_modes():
            session.drops.after_backward()
        else:
            without_modes(session.drops.after_backward)
        return result
    except BaseException:
        session.judge.enter(raised)  # of torch.autograd.grad a program may ask once more
        raise
    finally:
        _in_backward -= 1
        _had_backward = True
        if in_step or not (session._used or session.has_optimizer()):  # a call less in most programs
            session.notify("on_gradients_made")
        by_hand = session.leaves and _phase_before == lib.DATA  # no module's call says that a loss is computed
        session.state.phase = lib.LOSS if by_hand or _phase_before == lib.BACKWARD else _phase_before


def _begin_in_tap(session: Session) -> None:  # a backward, once it knows what parameters are called
    tap = session.tap
    if tap is not None:
        if tap.named_at != session.parameter_names.changes:
            tap.name_parameters()
        tap.begin_backward()


def _begin_backward(session: Session, losses: tuple[Any, ...], gradients: Any) -> tuple[Any, ...]:
    global _phase_before
    try:
        if session.state.course != lib.TRAINS and _root is None:
            session.inference.begin_training(losses=losses)
        if not _in_closure:
            _steps_of.clear()  # of one that raised
            _in_graphs.clear()
        if session.tracker.passed:
            session.begins_work()
        session.drops.notified = False
        if session.drops.began is None and session.recorder is not None:
            session.drops.began = session.recorder.next_seq()
        if session.leaves and session.mode is StepMode.UNHEARD and session.updates_by_hand():
            session.end_by_hand()  # no op of this forward was heard
        if not session.roots:
            find_leaves(session, losses)
        given = gradients if isinstance(gradients, (tuple, list)) else (gradients,) * len(losses)
        for loss, gradient in zip(losses, given):
            factor = factor_of(loss, gradient) if loss.numel() == 1 else None
            if factor is not None:
                session.facts.factor = factor
            elif unread:
                unread.clear()
                if session.options.level != "ops":
                    session.note("by which number a loss was multiplied: this PyTorch does not show it (level ops "
                                 "does)")
    except Exception as error:
        session.failed(error, "what a backward begins from")
    _phase_before, session.state.phase = session.state.phase, lib.BACKWARD
    if session.places is not None or session.leaves and session.mode is not StepMode.UNHEARD:
        _begin_in_tap(session)
    if is_autocast_on():
        session.notify("before_backward_in_autocast", losses)
    return losses,


def _grad(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    global _in_backward
    if _in_backward or _root is not None:
        return original(*args, **kwargs)
    losses, args, kwargs = tensors_given(args, kwargs, 0, "outputs")
    learned, args, kwargs = tensors_given(args, kwargs, 1, "inputs")
    if session.inference.asks_for_gradients(losses, learned, given_at(args, kwargs, 4, "create_graph")):
        return _backward(session, original, args, kwargs, losses, given_at(args, kwargs, 2, "grad_outputs"))
    before, session.state.phase = session.state.phase, lib.BACKWARD
    if not session.roots:
        session.notify("before_backward", session, losses, first=begin_grad)
    if session.places is not None:
        _begin_in_tap(session)
    _in_backward += 1
    try:
        return original(*args, **kwargs)
    finally:
        _in_backward -= 1
        session.state.phase = before if session.inference.asked is None else lib.LOSS


# The scaler: methods of the class, so args[0] is the scaler.
def _scaler_made(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A derived class (sharded training has one) may override what is patched, and not call it."""
    result = original(*args, **kwargs)
    for kind in type(args[0]).__mro__:
        if kind is torch.amp.grad_scaler.GradScaler:
            break
        _scalers.add(kind)
        _patch_scaler(kind)
    return result


def _patch_scaler(kind: type) -> None:
    for name, wrapper in _SCALER_METHODS.items():
        if callable(vars(kind).get(name)):
            patch(kind, name, wrapper, of_scaler=True)


_SCALER_METHODS = {"scale": phases.scale, "unscale_": phases.unscale, "step": phases.step, "update": phases.update}


# Optimizers.
# Optimizers that step, by id: how many calls of a step run inside of it, which a derived class makes.
_steps_of: dict[int, int] = {}
_in_graphs: set[int] = set()  # optimizers that have stepped in a compiled graph since the last backward


def _optimizer_made(session: Session, original: Callable[..., Any], args: tuple[Any, ...],
                    kwargs: dict[str, Any]) -> Any:
    result = original(*args, **kwargs)
    session.tracker.meet(args[0])
    with modes_aside():
        session.meet()
        session.open()  # what comes before the first forward is heard as well
    return result


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """What it returns are the arguments to use instead."""
    session = _session
    if session is None or _is_traced() or _compiler._is_compiling_flag:
        return None
    if not session.threads.trains:
        session.threads.begin_training()
    if session.threads.watched != _this_thread() and not session.hears():
        return None
    key = id(optimizer)
    if key in _steps_of:
        _steps_of[key] += 1
        return None
    try:
        if session.state.course != lib.TRAINS:
            session.inference.begin_training()
        _steps_of[key] = 0
        session.optimizer_ran = True
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            session.notify("before_step", session, optimizer, first=_reach_boundary)
            return None
        closure = _with_boundary(session, optimizer, closure)
        return ((args[0], closure, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closure})
    except Exception as error:
        session.failed(error, "optimizer step")
        return None


def _reach_boundary(session: Session, optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer]:
    key = id(optimizer)
    if not phases.stepping and (key in session.tracker.passed or key not in session._used):
        session.at_boundary(optimizer)
    session.state.phase = lib.OPTIMIZER
    return optimizer,


_in_closure = 0
_repeats = 0  # ... that were called before in the same step: what they gave up then is part of it


def _with_boundary(session: Session, optimizer: torch.optim.Optimizer,
                   closure: Callable[..., Any]) -> Callable[..., Any]:
    """A closure computes the gradients inside of the optimizer's step: the boundary is where its first call ends."""
    reached = False

    @functools.wraps(closure)
    def watched(*args: Any, **kwargs: Any) -> Any:
        global _in_closure, _repeats
        nonlocal reached
        session.state.phase = lib.DATA
        repeats = int(reached)
        _in_closure, _repeats = _in_closure + 1, _repeats + repeats
        try:
            result = closure(*args, **kwargs)
        except BaseException as error:
            _steps_of.pop(id(optimizer), None)  # nobody says that its step is over
            take_frames_off(error)
            raise
        finally:
            _in_closure, _repeats = _in_closure - 1, _repeats - repeats
        try:
            if not reached and session.hears():
                reached = True
                session.notify("before_step", session, optimizer, first=_reach_boundary)
            session.state.phase = lib.OPTIMIZER
        except Exception as error:
            session.failed(error, "optimizer step")
        return result

    return watched


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    session = _session
    if session is None or _is_traced() or _compiler._is_compiling_flag or (
            session.threads.watched != _this_thread() and not session.hears()):
        return
    key = id(optimizer)
    if key in _in_graphs and key not in _steps_of:
        return  # a hook of PyTorch's around the graph that was its step
    if inside := _steps_of.pop(key, 0):
        _steps_of[key] = inside - 1
        return
    try:
        session.notify("after_step", optimizer)
        session.state.phase = lib.DATA
        if not phases.stepping:
            session.passed_boundary(optimizer, False, None)
    except Exception as error:
        session.failed(error, "optimizer step")
