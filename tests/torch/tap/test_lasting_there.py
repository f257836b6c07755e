# SPDX-License-Identifier: Apache-2.0
"""Level ops on a device: what went bad past PyTorch is told as on the host, and what is written on purpose is not. On
the device of device/, with a library for which the CPU plays a GPU (read_there.py).
"""
from __future__ import annotations

import copy
import ctypes
import mmap
import tempfile
from pathlib import Path

import nanhunt
import pytest
import torch
from lasting_runs import Centred, legitimate_writes, train
from on_device import on_device
from read_there import capturing, read_there
from saved import report_of
from step_runs import run_once
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DEVICE = "walled"
COUNTED = "writes that nothing watched made, which left finite what they wrote"


def write_past_torch(t, index, number):
    """As a kernel of nobody's would, or a memory error: no op, and torch's count of writes stands still."""
    if t.is_cpu:
        t.detach().numpy()[index] = number
        return
    libc = ctypes.CDLL(None, use_errno=True)
    block = t.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    wall = [ctypes.c_void_p(block), ctypes.c_size_t(mmap.PAGESIZE)]
    assert libc.mprotect(*wall, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    at = sum(i * s for i, s in zip(index, t.stride(), strict=True))
    ctypes.c_float.from_address(t.data_ptr() + 4 * at).value = number
    assert libc.mprotect(*wall, 0) == 0


def weight(step, model, optimizer):
    if step == 2:
        write_past_torch(model[0].weight, (1, 1), float("nan"))


def buffer(step, model, optimizer):
    if step == 2:
        write_past_torch(model[1].mean, (3,), float("inf"))


def state(step, model, optimizer):
    if step == 2:
        write_past_torch(optimizer.state[model[3].weight]["exp_avg"], (0, 1), float("nan"))


def frozen(step, model, optimizer):
    if step == 0:
        model[3].requires_grad_(False)
    if step == 2:
        write_past_torch(model[3].weight, (0, 1), float("nan"))  # read as it lies and, by products, transposed


PLANTED = {"weight": weight, "buffer": buffer, "state": state, "frozen": frozen}


def told(report):
    """Verdict and findings word for word. Copies to a device are ops that the host does without."""
    def plain(thing):
        if isinstance(thing, dict):
            return {k: plain(v) for k, v in thing.items() if k not in ("seq", "op_seq", "what_if")}
        if isinstance(thing, float):
            return f"{thing:.6g}"
        return [plain(item) for item in thing] if isinstance(thing, list) else thing

    return plain(report["verdict"]), plain(report["findings"])


@pytest.mark.parametrize("copies_later", [0, 2])
@pytest.mark.parametrize("what", PLANTED)
@on_device
def test_what_went_bad_behind_torch_is_told_as_on_the_host(what, copies_later):
    with tempfile.TemporaryDirectory() as name:
        host = train(Path(name) / "host", PLANTED[what])
        with read_there(copies_later):
            there = train(Path(name) / "there", PLANTED[what], device=DEVICE)
    classes = {f["class"] for f in there["findings"]}
    assert "corruption" in classes, there["findings"]
    assert told(there) == told(host)


@pytest.mark.parametrize("what", ["nothing", *[f.__name__ for f in legitimate_writes() if f.__name__ != "by_numpy"]])
@on_device
def test_what_users_write_on_purpose_is_no_finding_there(what):
    writes = {f.__name__: f for f in legitimate_writes()} | {"nothing": lambda *_: None}
    with tempfile.TemporaryDirectory() as name, read_there():
        report = train(Path(name) / "run", writes[what], device=DEVICE)
    assert report["verdict"]["status"] == "clean" and report["findings"] == []
    assert COUNTED not in str(report["coverage"])


@on_device
def test_a_write_past_torch_that_left_all_finite_is_counted_once_and_no_finding():
    def between(step, model, optimizer):
        if step == 2:
            write_past_torch(model[0].weight, (1, 1), 0.25)

    with tempfile.TemporaryDirectory() as name, read_there():
        report = train(Path(name) / "run", between, device=DEVICE)
    assert report["verdict"]["status"] == "clean" and report["findings"] == []
    assert COUNTED in str(report["coverage"])


@on_device
def test_once_a_graph_was_captured_whose_replays_write_past_torch_nobody_is_blamed():
    is_on = [False]

    def between(step, model, optimizer):
        is_on[0] = step == 0
        if step == 2:
            write_past_torch(model[0].weight, (1, 1), float("nan"))

    with tempfile.TemporaryDirectory() as name, read_there(), capturing(lambda: is_on[0]):
        report = train(Path(name) / "run", between, device=DEVICE)
    assert "corruption" not in {f["class"] for f in report["findings"]}, report["findings"]
    assert "once a CUDA graph was captured" in str(report["coverage"])


class Mixed(nn.Module):
    """Convolution in channels_last, batch norm, a checkpointed block, windows and transposed views."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4)
        self.inner, self.centred, self.out = nn.Linear(20, 8), Centred(8), nn.Linear(8, 3)

    def forward(self, x):
        x = x.unsqueeze(1).unsqueeze(1).expand(-1, 1, 2, 6).contiguous(memory_format=torch.channels_last)
        x = self.norm(self.conv(x)).flatten(1)
        x = checkpoint(lambda t: torch.tanh(self.inner(t)), x, use_reentrant=False)
        windows = x.as_strided((x.shape[0], 4, 2), (8, 2, 1)).sum(2)
        return self.out(self.centred(x) + windows.repeat(1, 2)) + x.t()[:3].t()


HEALTHY = {
    "foreach": (torch.optim.AdamW, {"foreach": True}),
    "fused": (torch.optim.AdamW, {"fused": True}),
    "for loop": (torch.optim.Adam, {"foreach": False, "amsgrad": True}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
}


@pytest.mark.parametrize("optimizer", HEALTHY)
@on_device
def test_a_healthy_run_is_silent_whatever_writes_it(optimizer):
    make, options = HEALTHY[optimizer]

    def build():
        model = Mixed().to(DEVICE).to(memory_format=torch.channels_last)
        average = copy.deepcopy(model)
        opt = make(model.parameters(), lr=1e-3, **options)

        def step(i):
            opt.zero_grad(set_to_none=bool(i % 2))
            for _ in range(2):  # micro-batches
                x, y = torch.randn(8, 6).to(DEVICE), torch.randint(0, 3, (8,)).to(DEVICE)
                (F.cross_entropy(model(x), y) / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            for ours, its in zip(average.parameters(), model.parameters(), strict=True):
                ours.data.mul_(0.9).add_(its.data, alpha=0.1)
            if i == 3:
                model.eval()
                with torch.no_grad():
                    model(x)
                model.train()

        return step, model, opt

    with tempfile.TemporaryDirectory() as name:
        plain = run_once(build, 6)
        with read_there():
            run = run_once(build, 6, Path(name) / "run", level="ops")
    assert run.digest == plain.digest, "the run was changed"
    assert [f for f in run.report["findings"] if f["severity"] in ("warning", "fault")] == [], run.report["findings"]
    assert COUNTED not in str(run.report["coverage"])


class Flat(nn.Module):
    """A parameter in the middle of a flat buffer whose memory is given back between steps, as sharded training does."""

    def __init__(self, device):
        super().__init__()
        self.flat = torch.randn(100, device="cpu").to(device)
        self.w = nn.Parameter(self.flat[36:100].view(8, 8))
        self.bytes = self.flat.untyped_storage().nbytes()

    def give_back(self):
        self.kept = self.flat.cpu().clone()
        self.flat.untyped_storage().resize_(0)

    def get_anew(self):
        self.flat.untyped_storage().resize_(self.bytes)

    def fill(self):
        self.flat.data.copy_(self.kept)

    def forward(self, x):
        if self.flat.untyped_storage().nbytes() == 0:
            self.get_anew()
            self.fill()
        return x @ self.w


def train_flat(folder, device, before=lambda model: None):
    model = Flat(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nanhunt.watch(out=folder, level="ops", quiet=True):
        for step in range(5):
            if step > 0:
                before(model)
            model(torch.randn(4, 8).to(device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.give_back()
    return report_of(folder)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@on_device
def test_memory_that_was_given_back_between_steps_is_not_read(device):
    with tempfile.TemporaryDirectory() as name, read_there():
        report = train_flat(Path(name) / "run", device)
    assert report["findings"] == []
    assert "lost or came too late" not in str(report["coverage"])


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@on_device
def test_memory_that_came_back_and_is_not_filled_yet_is_nobodys_corruption(device):
    def before(model):
        model.get_anew()
        if device == "cpu":  # stands for what others left there; who asked NumPy could not be resized
            ctypes.c_float.from_address(model.w.data_ptr()).value = float("nan")
        else:
            write_past_torch(model.w, (0, 0), float("nan"))
        model.register_forward_pre_hook(lambda model, args: model.fill())

    with tempfile.TemporaryDirectory() as name, read_there():
        report = train_flat(Path(name) / "run", device, before)
    assert report["findings"] == []


@pytest.mark.parametrize("seen_by", ["a root called in its capture", "its replay"])
@on_device
def test_a_graph_that_no_look_fell_into_is_noticed_all_the_same(seen_by):
    def between(step, model, optimizer):
        if step == 0 and seen_by == "its replay":
            torch.cuda.CUDAGraph.replay(object())
        elif step == 0:
            model(torch.randn(16, 4).to(DEVICE))  # warms up; the second call of a step is captured
            is_on[0] = True
            model(torch.randn(16, 4).to(DEVICE))
            is_on[0] = False
        if step == 2:
            write_past_torch(model[1].mean, (3,), float("inf"))

    is_on, replay = [False], torch.cuda.CUDAGraph.replay
    torch.cuda.CUDAGraph.replay = lambda graph: None
    with tempfile.TemporaryDirectory() as name, read_there(), capturing(lambda: is_on[0]):
        try:
            report = train(Path(name) / "run", between, device=DEVICE)
        finally:
            torch.cuda.CUDAGraph.replay = replay
    assert "corruption" not in {f["class"] for f in report["findings"]}, report["findings"]
    assert "once a CUDA graph was captured" in str(report["coverage"])
