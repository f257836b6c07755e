# SPDX-License-Identifier: Apache-2.0
"""A program of several ranks under torchrun on loopback, with a fault on rank 2 in step 3."""
from __future__ import annotations

import os
import subprocess

import pytest
import ready_python
import torch
from hunting import cli

BAD_STEP, BAD_RANK = 3, 2

SCRIPT = """
import atexit, contextlib, ctypes, gc, os, sys, weakref
import torch, torch.distributed as dist
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()

dist.init_process_group("gloo")
rank, bad = dist.get_rank(), sys.argv[1]
torch.manual_seed(1)
norm = nn.BatchNorm1d(8) if sys.argv[2] == "buffers" else Norm()
model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), norm, nn.Linear(8, 2))
if bad == "probe":  # what is not trained is each rank's own affair
    model[1].queue = nn.Parameter(torch.zeros(3), requires_grad=False)
inner = model[1]
if sys.argv[2] in ("DDP", "fp16", "buffers"):
    model = nn.parallel.DistributedDataParallel(model)
if sys.argv[2] == "fp16":  # gradients are sent as fp16, and cast back in a thread of the exchange's
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model.register_comm_hook(None, fp16_compress_hook)
elif sys.argv[2] in ("FSDP2", "HSDP"):
    from torch.distributed.fsdp import fully_shard
    world = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (world,)) if sys.argv[2] == "FSDP2" else dist.init_device_mesh(
        "cpu", (4, world // 4), mesh_dim_names=("dp_replicate", "dp_shard"))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(100 + rank)
for step in range(6):
    x, y = torch.randn(5, 6), torch.randn(5, 2)
    if bad == "born" and step == 3 and rank == 2:
        x[1] = 0  # an empty sample: its norm is 0
    if bad == "spoilt" and step == 3 and rank == 0:
        x[1] = float("nan")
    alone = bad == "alone" and step >= 2  # each rank takes steps of its own, and means to
    with model.no_sync() if alone else contextlib.nullcontext():
        loss = (model(x) - y).pow(2).mean()
        (loss * 1e8 if bad == "wire" and step == 3 else loss).backward()
    if sys.argv[2] == "own":  # gradients are added up in fp16, each rank's as large as they may be
        for p in model.parameters():
            factor = (4e4 if bad == "sum" and step == 3 else 1e3) / p.grad.abs().max()
            dist.all_reduce(factor, op=dist.ReduceOp.MIN)
            wire = (p.grad * factor).half()
            dist.all_reduce(wire)
            p.grad.copy_(wire.float() / factor / dist.get_world_size())
    optimizer.step(); optimizer.zero_grad()
    if bad == "probe":
        inner.queue.fill_(rank)
    if bad == "flip" and step == 3 and rank == 2:  # a bit of memory
        first = next(model.parameters())
        first = getattr(first, "_local_tensor", first)
        ctypes.cast(first.data_ptr(), ctypes.POINTER(ctypes.c_uint32))[0] ^= 1 << 3
    if bad == "probe" and step == 2:
        if rank == 0:  # trains something of its own meanwhile, so its steps are further than those of the others
            probe = nn.Linear(6, 2)
            own = torch.optim.SGD(probe.parameters(), lr=0.1)
            for _ in range(3):
                probe(x).pow(2).mean().backward(); own.step(); own.zero_grad()
        passing = nn.parallel.DistributedDataParallel(nn.Linear(6, 2))
        passing(x).sum().backward()
        passing = weakref.ref(passing); gc.collect()
        assert passing() is None, "kept alive"
dist.barrier()
dist.destroy_process_group()
# gloo's threads keep what backward stashed for Python a little longer than the call. If they let go of it when the
# interpreter is already at its end, PyTorch aborts the rank, watched or not. So what a program runs at its end is run
# here, and the interpreter does not end.
atexit._run_exitfuncs()
os._exit(0)
"""

# Two stages of a pipeline: activations are sent one way, gradients the other. In step 3 the first one takes logarithms
# of negative numbers.
PIPELINE = """
import atexit, os, sys
import torch, torch.distributed as dist
from torch import nn

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.logs = nn.Linear(8, 8), False
    def forward(self, x):
        y = self.layer(x)
        return y.sub(3).log() if self.logs else y

dist.init_process_group("gloo")
rank, bad = dist.get_rank(), sys.argv[1]
torch.manual_seed(rank)
model = Stage() if rank == 0 else nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    optimizer.zero_grad()
    for micro_batch in range(2):
        there = torch.zeros(4, 8)
        if rank == 0:
            model.logs = bad == "born" and step == 3 and micro_batch == 1
            y = model(torch.randn(4, 8))
            dist.send(y.detach(), 1)
            dist.recv(there, 1)
            y.backward(there)
        else:
            dist.recv(there, 0)
            model(there.requires_grad_()).square().mean().backward()
            dist.send(there.grad, 0)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
atexit._run_exitfuncs()
os._exit(0)
"""


def can_shard():
    """Skips where this PyTorch has no FSDP2, or none that runs on the CPU."""
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this PyTorch has no torch.distributed.fsdp.fully_shard")
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this PyTorch's FSDP2 does not run on the CPU")


def train_ranks(folder, world, bad, wrapper, options=()):
    """Trains in `folder`, watched into `folder`/run. `bad`: "born", "sum", "wire", "flip", "alone", "probe",
    "spoilt" (a sample of rank 0), "no"; `wrapper`: "DDP", "fp16" (DDP that sends fp16), "buffers" (DDP that sends those
    of rank 0 to the others), "FSDP2", "HSDP", "own" (the program reduces gradients itself),
    "pipeline" (another program, of two ranks)."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    if wrapper in ("FSDP2", "HSDP"):
        can_shard()
    (folder / "main.py").write_text(PIPELINE if wrapper == "pipeline" else SCRIPT)
    python = ready_python.command()
    command = [cli(), "run", *options, "--out", str(folder / "run"), "--", *python, "-m", "torch.distributed.run",
               "--standalone", f"--nproc-per-node={world}", "--no-python", *python, "main.py", bad, wrapper]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
