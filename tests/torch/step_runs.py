# SPDX-License-Identifier: Apache-2.0
"""Training runs in this process, each beside the same run unwatched."""
from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nanhunt
import numpy
import torch
from saved import records_of
from torch import nn


class Root(nn.Module):
    """Takes a square root that a healthy batch leaves positive: inputs beyond 10 make NaN."""

    def forward(self, x):
        return torch.sqrt(10 - x) * 0.1


class Holds(nn.Module):
    """A module under a name."""

    def __init__(self, name, inner):
        super().__init__()
        self.name = name
        self.add_module(name, inner)

    def forward(self, x):
        return getattr(self, self.name)(x)


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
    notes: dict = field(default_factory=dict)
    report: dict = field(default_factory=dict)
    path: Path | None = None

    def records(self, kind):
        return records_of(self.path, kind)

    @property
    def unheard(self):
        """Bad steps of which no operation is known, and why."""
        return [(row["step"], row["text"]) for row in self.records("unheard")]

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


def run_once(build, steps, out=None, **options):
    """`build` makes the things that a run has and its step: (step(i), *things). `out` None: unwatched."""
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    run = Run()
    watch = None
    modes = torch._C._len_torch_dispatch_stack()
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
        watch = nanhunt.watch(out=out, quiet=True, **options)
    try:
        step, *things = build()
        for i in range(steps):
            step(i)
        run.digest = digest_of(*things, torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist())
        assert torch._C._len_torch_dispatch_stack() <= modes + 1  # what is built may hold one of its own
    finally:
        if watch is not None:
            watch.close()
    if watch is not None:
        run.notes, run.path = watch.notes, Path(out)
        assert not [note for note in run.notes if note.startswith("errors inside")], run.notes
        assert torch._C._len_torch_dispatch_stack() == modes
        run.report = json.loads(watch.report("json"))
    return run


def compiled_as_by_default():
    """Graphs of a run that nobody watches may come out of a cache, whatever its test says of those that are watched."""
    config = sys.modules.get("torch._functorch.config")
    has_cache = config is not None and hasattr(config, "enable_autograd_cache")
    return config.patch(enable_autograd_cache=True) if has_cache else contextlib.nullcontext()


def watched(build, tmp_path, steps=5, **options):
    """The run under watch. It must end bit for bit as without."""
    with compiled_as_by_default():
        plain = run_once(build, steps)
    run = run_once(build, steps, tmp_path / "run", **options)
    assert run.digest == plain.digest, "the run was changed"
    return run
