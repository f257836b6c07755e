# SPDX-License-Identifier: Apache-2.0
"""What a part of nanhunt can hear of a PyTorch run. `_hooks` calls these, in the order in which listeners were added.

Every method may be left out. None may raise into the run: `_hooks` swallows and counts what one raises.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanhunt._nested import tensors_in


class RootCall:
    """One outermost call of a module with trainable parameters, not inside backward. Grad mode is on, or a custom
    autograd function makes it (a checkpoint)."""

    __slots__ = ("module", "name", "args", "kwargs", "index", "function", "raised", "_tensors")

    def __init__(self, module: torch.nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any],
                 index: int, function: str = "") -> None:
        self.function = function  # its name
        self.module, self.name, self.args, self.kwargs = module, name, args, kwargs
        self.index = index  # of the call in its step, from 0
        self.raised: type[BaseException] | None = None  # it ended by this
        self._tensors: list[tuple[str, torch.Tensor]] | None = None

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Those that it was given, by path: "0", "images"."""
        if self._tensors is None:
            self._tensors = found = []
            for i, given in enumerate(self.args):
                if isinstance(given, torch.Tensor):
                    found.append((str(i), given))
                else:
                    found += tensors_in(given, str(i))
            if self.kwargs:
                found += tensors_in(self.kwargs)
        return self._tensors


class Listener:
    def on_root_met(self, call: RootCall) -> None: ...  # of a module that was not called before
    def on_optimizer_met(self, optimizer: torch.optim.Optimizer) -> None: ...  # before it steps for the first time
    def on_root_enter(self, call: RootCall) -> None: ...
    def on_root_exit(self, call: RootCall, output: Any) -> None: ...  # output None: the call raised, or gave nothing

    # torch.autograd.backward, Tensor.backward, and torch.autograd.grad outside of a root.
    def before_backward(self, tensors: Sequence[torch.Tensor], gradients: Any, kwargs: dict[str, Any]) -> None: ...
    def after_backward(self) -> None: ...
    def before_grad(self, outputs: Any, inputs: Any, kwargs: dict[str, Any]) -> None: ...
    def after_grad(self, result: Any) -> None: ...

    def before_scale(self, scaler: Any, loss: Any) -> None: ...
    def after_scale(self, scaler: Any, scaled: Any) -> None: ...
    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None: ...
    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None: ...
    def before_clip(self, parameters: Sequence[torch.Tensor], name: str, bound: float) -> None: ...
    def after_clip(self, total_norm: Any) -> None: ...

    # The boundary: before an optimizer changes parameters. With a scaler: before GradScaler.step, skipped or not.
    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None: ...
    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None: ...
    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def before_update(self, scaler: Any) -> None: ...
    def after_update(self, scaler: Any, error: BaseException | None) -> None: ...

    # Watch.step: fn is a whole step. Called before it runs; its end is an on_step_end.
    def on_step_begin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    # A call with gradients off: validation.
    def before_validated(self, module: torch.nn.Module) -> None: ...
    def on_validated(self, module: torch.nn.Module, output: Any) -> None: ...
    # Ops are heard from here on, and what was recorded of those before may not be in the trace.
    def on_hold(self) -> None: ...
    # ... and the operations of the step that runs will be in the trace.
    def on_kept(self) -> None: ...
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
