# SPDX-License-Identifier: Apache-2.0
"""What a part of nanhunt can hear of a PyTorch run. `_hooks` calls these, in the order in which listeners were added.

Every method may be left out. None may raise into the run: `_hooks` swallows and counts what one raises.
"""
from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._modes import modes_aside
from nanhunt._nested import tensors_in
from nanhunt._pytorch import dispatch_modes, function_modes, no_torch_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from nanhunt._tap.kernels import Kernels


class RootCall:
    """One outermost call of a module with trainable parameters, not inside backward. Grad mode is on, or a custom
    autograd function makes it (a checkpoint)."""

    __slots__ = ("module", "name", "index", "tensors", "inputs", "are_floating")

    def __init__(self, module: torch.nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any],
                 index: int) -> None:
        self.module, self.name = module, name
        self.index = index  # of the call in its step, from 0
        self.tensors: list[tuple[str, torch.Tensor]] = []  # that it was given, by path: "0", "images"
        for i, given in enumerate(args):
            if type(given) is torch.Tensor or isinstance(given, torch.Tensor):
                self.tensors += (str(i), given),
            else:
                self.tensors += tensors_in(given, str(i))
        if kwargs:
            self.tensors += tensors_in(kwargs)
        self.inputs: list[weakref.ref[torch.Tensor]] = []  # those of them that are floating
        self.are_floating: list[bool] = []
        for _, t in self.tensors:
            is_floating = t.is_floating_point() if type(t) is torch.Tensor else _is_floating(t)
            self.are_floating += is_floating,
            if is_floating:
                self.inputs += weakref.ref(t),


def _is_floating(t: torch.Tensor) -> bool:
    try:
        with no_torch_function():  # a subclass of the user's is not asked
            return t.is_floating_point()
    except Exception:  # it is no tensor that could be read
        return False


class Listener:
    leaves_out: frozenset[str] = frozenset()  # methods that need not be called, for there is nothing to hear

    def on_root_met(self, call: RootCall) -> None: ...  # of a module that was not called before
    def on_optimizer_met(self, optimizer: torch.optim.Optimizer) -> None: ...  # before it steps for the first time
    def on_root_enter(self, call: RootCall) -> None: ...
    # In steps in which Session.hears_exits, or that are not heard. Output None: the call raised, or gave nothing.
    def on_root_exit(self, call: RootCall, output: Any) -> None: ...

    # torch.autograd.backward and Tensor.backward.
    def before_backward(self, tensors: Sequence[torch.Tensor]) -> None: ...
    def before_backward_in_autocast(self, tensors: Sequence[torch.Tensor]) -> None: ...  # before that
    def on_gradients_made(self) -> None: ...  # by a backward inside of an optimizer's step, or where there is none

    # Of a scaler that is enabled, and clipping. Each ends with a result, or with what was raised.
    def before_scale(self, scaler: Any, loss: Any) -> None: ...
    def after_scale(self, scaler: Any, loss: Any, scaled: Any, error: BaseException | None) -> None: ...
    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None: ...
    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, result: None,
                      error: BaseException | None) -> None: ...
    def before_clip(self, parameters: Sequence[torch.Tensor], bound: float) -> None: ...
    def after_clip(self, parameters: Sequence[torch.Tensor], bound: float, total_norm: Any,
                   error: BaseException | None) -> None: ...

    # The boundary: before an optimizer changes parameters. With a scaler: before GradScaler.step, skipped or not.
    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None: ...
    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, result: Any,
                          error: BaseException | None) -> None: ...
    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def before_update(self, scaler: Any, given: bool) -> None: ...  # given: a new scale
    def after_update(self, scaler: Any, given: bool, result: None, error: BaseException | None) -> None: ...

    # Watch.step: fn is a whole step. Called before it runs; its end is an on_step_end.
    def on_step_begin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    # A call with gradients off: validation.
    def before_validated(self, module: torch.nn.Module) -> None: ...
    def on_validated(self, module: torch.nn.Module, output: Any) -> None: ...
    # The operations of the step that runs will be in the trace, as far as they are heard.
    def on_kept(self) -> None: ...
    def on_updated_by_hand(self) -> None: ...  # before the step of a program that is its own optimizer ends
    # Gradients that no optimizer took are about to be cleared, or stay while the next forward begins.
    def on_drop(self) -> None: ...
    # No optimizer may end the step at hand: what speaks for it has come.
    def before_unfinished(self) -> None: ...
    # Before a step ends that no optimizer ends: the program gave it up.
    def on_unfinished(self, ending: int) -> None: ...
    def on_step_end(self, step: int, skipped: bool) -> None: ...  # before the step's row is written
    def on_step_recorded(self, step: int) -> None: ...  # after it
    def on_resized(self, storage: Any) -> None: ...  # a storage's memory went, came, or moved
    def on_graph(self) -> None: ...  # a CUDA graph is about to be replayed
    def before_last_end(self) -> None: ...  # the watch is about to end, its last step is still open
    def on_close(self) -> None: ...


class _Hearers(dict[str, "list[tuple[Listener, Callable[..., None]]]"]):
    """Of a list of listeners, by method: those that have it, looked for when it is called first."""

    def __init__(self, listeners: list[Listener]) -> None:
        super().__init__()
        self.listeners = listeners

    def __missing__(self, method: str) -> list[tuple[Listener, Callable[..., None]]]:
        silent = getattr(Listener, method)
        self[method] = [(listener, getattr(listener, method)) for listener in self.listeners
                        if getattr(type(listener), method, None) is not silent and method not in listener.leaves_out]
        return self[method]


class Notifier:
    """Calls listeners, and knows what time that takes of the thread that trains."""

    kernels: Kernels | None

    def __init__(self) -> None:
        self.forget_listeners()
        self.spent_ns = 0  # since the last step's row
        self.since_ns = 0  # when what runs of ours began, while that is being timed; else 0

    def failed(self, error: BaseException, where: str) -> None:
        """Something of ours raised."""
        raise NotImplementedError

    def forget_listeners(self) -> None:
        self._known: dict[int, _Hearers] = {}  # of all lists that were notified, by id
        self.listen([])

    def listen(self, listeners: list[Listener]) -> None:
        """These are notified from here on."""
        key = id(listeners)
        if key not in self._known:
            self._known[key] = _Hearers(listeners)
        self.listeners, self._hearers = listeners, self._known[key]

    def own_launches(self) -> AbstractContextManager[None]:
        """Around what may launch kernels of ours."""
        return nullcontext() if self.kernels is None else self.kernels.own()

    def _put_aside(self) -> ExitStack:
        aside = ExitStack()
        aside.enter_context(self.own_launches())
        aside.enter_context(modes_aside())
        return aside

    def notify(self, method: str, *args: Any, first: Callable[..., Any] | None = None) -> Any:
        """Calls one method of each listener that has one. `first`: what comes before them; it is given the arguments,
        and gives those of the method, or None where nobody is called. The time of all of it is our own, and modes of
        the program are aside. None: that, or `first` has raised."""
        known = self._hearers
        hearers = known[method]
        if first is None and not hearers:
            return None
        aside, is_timed = None, not self.since_ns
        if is_timed:
            self.since_ns = perf_counter_ns()
        try:
            # A context costs as much as what is done in it. What a callback of the program's has turned on goes, too.
            if self.kernels is not None or dispatch_modes() or function_modes():
                aside = self._put_aside()
            if first is not None:
                try:
                    args = first(*args)
                except Exception as error:
                    self.failed(error, method)
                    return None
                if args is None:
                    return None
                if self._hearers is not known:
                    known = self._hearers
                    hearers = known[method]
            for listener, hear in hearers:
                if self._hearers is not known and listener not in self.listeners:
                    continue  # taken off by one before it, which may have closed the watch
                try:
                    hear(*args)
                except Exception as error:
                    self.failed(error, f"{type(listener).__name__}.{method}")
            return args
        finally:
            since = 0
            if is_timed:  # first: whatever ends this early leaves no time that goes on
                since, self.since_ns = self.since_ns, 0
            if aside is not None:
                aside.close()
            if since:
                self.spent_ns += perf_counter_ns() - since
