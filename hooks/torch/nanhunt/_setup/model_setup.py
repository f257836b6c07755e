# SPDX-License-Identifier: Apache-2.0
"""How the program has set up its training, told when it is first seen: classes of modules, parameters in 16 bits,
autocast where a model is called and in backward, optimizers that hold other parameters than the models. Autocast inside
of a forward is seen by the tap."""
from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import torch

from nanhunt import _library as lib
from nanhunt._hooks.root_names import model_of
from nanhunt._listener import Listener, RootCall
from nanhunt._names import plain_module, plain_path
from nanhunt._pytorch import unwrapped
from nanhunt._tap.called_frames import set_frame_reporter
from nanhunt._tap.places import call_site
from nanhunt._tap.plain import PLAIN
from nanhunt._tap.sites import cell_name
from nanhunt._tap.source import lines_around
from nanhunt._tap.tap_library import unheard
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._recorder import Recorder
    from nanhunt._session import Session

MOST_MODULES = 4096  # of a model, of which the classes are told
_WIDE = 100.0  # times the median column
_MOST_COLUMNS, _MOST_NUMBERS = 4096, 1 << 20  # of what is read of an input
_FORMATS = {torch.float16: lib.F16, torch.bfloat16: lib.BF16}


def autocast_formats() -> set[torch.dtype]:
    """Of what the calling thread computes under autocast. An op that autocast itself calls is outside of it."""
    return {torch.get_autocast_dtype(device) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)}


def _widest_column(t: torch.Tensor) -> tuple[int, float]:
    """Of a matrix of samples; how many times as far as the median column it reaches. 0: not known."""
    t = unwrapped(t)
    if type(t) not in PLAIN or not t.is_cpu or not t.is_floating_point() or t.layout is not torch.strided:
        return 0, 0.0
    if t.dim() != 2 or len(t) < 2 or not 2 < t.shape[1] <= _MOST_COLUMNS or t.numel() > _MOST_NUMBERS:
        return 0, 0.0
    with unheard(), torch.no_grad():
        reach = t.detach().float().abs().amax(0)
        median = float(reach.median())
        widest = int(reach.argmax())
        largest = float(reach[widest])
    return widest, largest / median if math.isfinite(largest) and median > 0 else 0.0


class SetupWatch(Listener):
    def __init__(self, session: Session) -> None:
        self.session = session
        self._backward = False  # under autocast: told
        self._autocasts: set[torch.dtype] = set()  # told
        self._models: WeakIdDict[bool] = WeakIdDict()  # of which modules were called that are told with all their parts
        session.at_open.append(lambda: set_frame_reporter(self._report_frames))
        session.at_end.append(lambda: set_frame_reporter(None))

    def _report_frames(self, site: str, frames: list[tuple[str, int, str]]) -> None:
        recorder = self.session.recorder
        if recorder is None:
            return
        try:
            for depth, (file, line, function) in enumerate(frames):
                first, code = lines_around(file, line)
                recorder.frame(site, depth, cell_name(file) or file, line, function, first, code)
        except Exception as error:
            self.session.failed(error, "lines of the program")

    def on_root_met(self, call: RootCall) -> None:
        recorder, step = self.session.recorder, self.session.state.step
        if recorder is None:
            return
        for dtype in autocast_formats() & _FORMATS.keys() - self._autocasts:
            self._autocasts.add(dtype)
            recorder.setup(step, lib.AUTOCAST, site=call_site(), dtype=_FORMATS[dtype])
        inner = plain_module(call.module)
        self._report_modules(recorder, inner, call.name)
        top, path = model_of(inner)
        if path and call.name.endswith(path) and id(top) not in self._models:  # a model that is not called as one
            self._models.set(top, True)
            self._report_modules(recorder, top, call.name[:-len(path)].rstrip("."))
        for dtype, number in _FORMATS.items():
            narrow = [name for name, p in inner.named_parameters() if p.dtype == dtype]
            if narrow:
                recorder.setup(step, lib.NARROW_PARAMETERS, plain_path(call.name, narrow[0]), dtype=number,
                               number=len(narrow))
        for name, t in call.tensors:
            column, ratio = _widest_column(t)
            if ratio >= _WIDE:
                recorder.setup(step, lib.WIDE_COLUMN, call.name, number=ratio, text=f"column {column} of input {name}")

    def _report_modules(self, recorder: Recorder, model: torch.nn.Module, name: str) -> None:
        for path, module in islice(model.named_modules(), MOST_MODULES):
            recorder.setup(self.session.state.step, lib.MODULE, plain_path(name, path) or type(model).__name__,
                           text=type(module).__qualname__)

    def before_backward_in_autocast(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._backward or self.session.recorder is None:
            return
        for device in {t.device.type for t in tensors if isinstance(t, torch.Tensor)}:
            if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
                dtype = _FORMATS.get(torch.get_autocast_dtype(device))
                if dtype is not None:
                    self._backward = True
                    self.session.recorder.setup(self.session.state.step, lib.BACKWARD_IN_AUTOCAST, site=call_site(),
                                                dtype=dtype)

    def on_optimizer_met(self, optimizer: torch.optim.Optimizer) -> None:
        if self.session.recorder is None:
            return
        names = self.session.parameter_names
        own = [p for group in optimizer.param_groups for p in group["params"]]
        if not own or not names or any(p.grad is not None or id(p) in names for p in own):
            return
        held = {id(p) for o in self.session.tracker.alive for group in o.param_groups for p in group["params"]}
        if any(p.grad is not None and id(p) not in held for p, _ in names.items_alive()):
            self.session.recorder.setup(self.session.state.step, lib.FOREIGN_PARAMETERS, site=call_site(),
                                        number=len(own), text=type(optimizer).__qualname__)
