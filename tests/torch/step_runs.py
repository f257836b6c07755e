# SPDX-License-Identifier: Apache-2.0
"""Training runs in this process, each beside the same run unwatched."""
from __future__ import annotations

import ctypes
import hashlib
import json
import random
import shutil
from dataclasses import dataclass, field

import numpy
import torch
from nanhunt import _levels
from nanhunt import _library as lib
from nanhunt._hooks import hooks
from nanhunt._options import Options
from nanhunt._recorder import Recorder
from nanhunt._session import Session
from torch import nn


class Root(nn.Module):
    """Takes a square root that a healthy batch leaves positive: inputs beyond 10 make NaN."""

    def forward(self, x):
        return torch.sqrt(10 - x) * 0.1


def net(*extra):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *extra, nn.Linear(8, 3))


def batch(bad=False, rows=8):
    x = torch.randn(rows, 6).clamp(-3, 3)
    if bad:
        x[0, 0] = 50.0
    return x, torch.randint(0, 3, (rows,))


@dataclass
class Run:
    digest: str = ""
    unheard: list = field(default_factory=list)  # bad steps of which no operation is known, and why
    health: list = field(default_factory=list)
    notes: dict = field(default_factory=dict)
    report: dict = field(default_factory=dict)
    norms: list = field(default_factory=list)
    steps: list = field(default_factory=list)

    @property
    def headline(self):
        origin = self.report["verdict"]["origin"]
        return next((f for f in self.report["findings"] if f["id"] == origin), None)


def digest_of(*things):
    """Bits of tensors, generators and numbers; versions of what is updated in place."""
    h = hashlib.sha256()

    def add(thing):
        if isinstance(thing, torch.Tensor):
            flat = thing.detach().cpu().contiguous().view(-1)
            h.update(flat.view(torch.uint8).numpy().tobytes() if thing.numel() else b"-")
        elif isinstance(thing, nn.Module):
            for name, t in [*thing.named_parameters(), *thing.named_buffers()]:
                h.update(f"{name}:{t._version}:{t.grad is None if t.is_leaf else 0}".encode())
                add(t)
                if t.is_leaf and t.grad is not None:
                    h.update(str(t.grad._version).encode())
                    add(t.grad)
            for m in thing.modules():
                h.update(str(sorted((k, v) for k, v in vars(m).items() if isinstance(v, int | float))).encode())
                h.update(str(sorted(vars(m))).encode())
        elif isinstance(thing, torch.optim.Optimizer):
            for state in thing.state.values():
                for value in state.values():
                    add(value)
        elif isinstance(thing, torch.Generator):
            add(thing.get_state())
        elif callable(thing):
            add(thing())
        elif isinstance(thing, list | tuple):
            for item in thing:
                add(item)
        else:
            h.update(repr(thing).encode())

    for thing in things:
        add(thing)
    return h.hexdigest()


def report_of(run):
    library = lib.load_library().fast
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    function = library.nanhunt_report
    function.argtypes = None
    status = function(ctypes.c_char_p(str(run).encode()), ctypes.c_int32(1), ctypes.byref(text), ctypes.byref(size))
    assert status == 0, lib.load_library().last_error()
    return json.loads(text.value.decode())


def run_once(build, steps, out=None, **options):
    """`build` makes the things that a run has and its step: (step(i), *things). `out` None: unwatched."""
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    run = Run()
    session = None
    modes = torch._C._len_torch_dispatch_stack()
    kept = Recorder.not_heard, Recorder.health, Recorder.norm, Recorder.step
    not_heard, health, norm, end = kept
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
        session = Session(Options(out=str(out), **{"level": "live", **options}))
        _levels.add_listeners(session)

        def kept_not_heard(self, step, trigger, why):
            run.unheard.append((step, why))
            not_heard(self, step, trigger, why)

        def kept_health(self, *args, **kwargs):
            run.health.append(args)
            health(self, *args, **kwargs)

        def kept_norm(self, *args):
            run.norms.append(args)
            norm(self, *args)

        def kept_step(self, *args):
            run.steps.append(args)
            end(self, *args)

        Recorder.not_heard, Recorder.health, Recorder.norm = kept_not_heard, kept_health, kept_norm
        Recorder.step = kept_step
        hooks.install(session)
    try:
        step, *things = build()
        for i in range(steps):
            step(i)
        run.digest = digest_of(*things, torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist())
        assert torch._C._len_torch_dispatch_stack() <= modes + 1  # what is built may hold one of its own
    finally:
        if session is not None:
            session.close()
            run.notes = session.notes
        Recorder.not_heard, Recorder.health, Recorder.norm, Recorder.step = kept
    if session is not None:
        assert not session.errors, session.last_error
        assert torch._C._len_torch_dispatch_stack() == modes
        if session.recorder is not None:
            run.report = report_of(out)
    return run


def watched(build, tmp_path, steps=5, **options):
    """The run under watch. It must end bit for bit as without."""
    plain = run_once(build, steps)
    run = run_once(build, steps, tmp_path / "run", **options)
    assert run.digest == plain.digest, "the run was changed"
    return run
