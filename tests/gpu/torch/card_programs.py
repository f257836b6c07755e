# SPDX-License-Identifier: Apache-2.0
"""Small trainings of the kinds that only a GPU has, each with a fault at one step, or its repaired twin.

    python3 card_programs.py NAME [--fixed] [--device cuda]

`PROGRAMS` says what the report must say of each. Without a GPU they run on the CPU, where that can be done.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

BAD_STEP, STEPS, ROWS, WIDTH = 6, 12, 32, 64


@dataclass(frozen=True)
class Expected:
    """The headline of a program. None: not promised."""

    cls: str | None
    op: str | None
    module: str | None
    phase: str | None
    step: int = BAD_STEP
    status: str = "fault"


class Peak(nn.Module):
    """Multiplies by a number: 1, and 1e6 in one step, with which fp16 overflows."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Net(nn.Module):
    def __init__(self, peak: nn.Module | None = None) -> None:
        super().__init__()
        self.fc1, self.peak, self.norm = nn.Linear(WIDTH, 2 * WIDTH), peak or Peak(), nn.LayerNorm(2 * WIDTH)
        self.fc2 = nn.Linear(2 * WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.norm(self.peak(self.fc1(x)))))


class Training:
    """A model, its optimizer and a step of it in mixed precision."""

    def __init__(self, model: nn.Module, device: str, dtype: torch.dtype = torch.float16,
                 forward: Callable | None = None, **options: bool) -> None:  # fmt: skip
        self.model, self.kind, self.dtype = model, device.split(":", maxsplit=1)[0], dtype
        self.forward = model if forward is None else forward
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
        self.scaler = torch.amp.GradScaler(self.kind, init_scale=256.0, enabled=dtype is torch.float16)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast(self.kind, dtype=self.dtype):
            loss = F.cross_entropy(self.forward(x).float(), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, WIDTH, device=device), torch.randint(10, (ROWS,), device=device)


def peaking(training: Training, device: str, fixed: bool, peak: Peak) -> None:
    """Steps of which one multiplies by too much, unless it is the twin."""
    for i in range(STEPS):
        peak.factor = 1e6 if i == BAD_STEP and not fixed else 1.0
        training.step(*batch(device))


def plain(device: str, fixed: bool, **options: bool) -> None:
    model = Net().to(device)
    peaking(Training(model, device, **options), device, fixed, model.peak)


def foreach(device: str, fixed: bool) -> None:
    plain(device, fixed, foreach=True)


def fused(device: str, fixed: bool) -> None:
    plain(device, fixed, fused=True)


def bfloat16(device: str, fixed: bool) -> None:
    """A row of zeros is divided by its sum."""

    class Share(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.sum(-1, keepdim=True)

    model = Net(Share()).to(device)
    with torch.no_grad():
        model.fc1.bias.zero_().add_(0.5 if fixed else 0.0)
    model.fc1.bias.requires_grad_(False)
    training = Training(model, device, dtype=torch.bfloat16)
    for i in range(STEPS):
        x, y = batch(device)
        if i == BAD_STEP:
            x[3] = 0
        training.step(x.abs(), y)


def attention(device: str, fixed: bool) -> None:
    """Products of queries and keys that are not scaled down leave fp16."""

    class Attention(nn.Module):
        by = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = (q * self.by) @ k.transpose(-2, -1)
            return torch.softmax(scores / self.by, dim=-1) @ v

    attend = Attention()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), attend, nn.Linear(WIDTH, 10)).to(device)
    training = Training(model, device)
    for i in range(STEPS):
        attend.by = 3e4 if i == BAD_STEP and not fixed else 1.0
        training.step(*batch(device))


def side_stream(device: str, fixed: bool) -> None:
    model = Net().to(device)
    training = Training(model, device)
    if not device.startswith("cuda"):
        return peaking(training, device, fixed, model.peak)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        peaking(training, device, fixed, model.peak)
    torch.cuda.current_stream().wait_stream(side)


def checkpointed(device: str, fixed: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    model = Net().to(device)
    training = Training(model, device, forward=lambda x: checkpoint(model, x, use_reentrant=False))
    peaking(training, device, fixed, model.peak)


def channels_last(device: str, fixed: bool) -> None:
    peak = Peak()
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), peak, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(16, 10)).to(device, memory_format=torch.channels_last)  # fmt: skip
    training = Training(model, device)
    for i in range(STEPS):
        peak.factor = 1e6 if i == BAD_STEP and not fixed else 1.0
        x = torch.randn(ROWS, 3, 16, 16, device=device).to(memory_format=torch.channels_last)
        training.step(x, torch.randint(10, (ROWS,), device=device))


def sharded(device: str, fixed: bool) -> None:
    """FSDP2, of one rank."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    os.environ.setdefault("MASTER_PORT", "29581")
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    mesh = dist.device_mesh.init_device_mesh(device.split(":", maxsplit=1)[0], (1,))
    model = Net().to(device)
    peak = model.peak
    for part in (model.fc1, model.fc2):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    peaking(Training(model, device), device, fixed, peak)
    dist.destroy_process_group()


class Rows(torch.utils.data.Dataset):
    """One of which has a NaN, in the batch of the bad step."""

    def __init__(self, fixed: bool) -> None:
        self.x = torch.randn(STEPS * ROWS, WIDTH, device="cpu")
        self.y = torch.randint(10, (STEPS * ROWS,), device="cpu")
        if not fixed:
            self.x.numpy()[BAD_STEP * ROWS + 5, 7] = float("nan")  # by no operation, as in a file

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


def pinned_loader(device: str, fixed: bool) -> None:
    model = Net().to(device)
    training = Training(model, device)
    loader = torch.utils.data.DataLoader(Rows(fixed), batch_size=ROWS, pin_memory=device != "cpu", num_workers=2)
    for x, y in loader:
        training.step(x.to(device, non_blocking=True), y.to(device, non_blocking=True))


def fp8_cast(device: str, fixed: bool) -> None:
    """Activations go through e4m3, whose largest number is 448."""

    class Narrow(nn.Module):
        factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.factor).to(torch.float8_e4m3fn).to(x.dtype) / self.factor + 0 * x

    narrow = Narrow()
    model = Net(narrow).to(device)
    training = Training(model, device, dtype=torch.bfloat16)
    for i in range(STEPS):
        narrow.factor = 1e4 if i == BAD_STEP and not fixed else 1.0
        training.step(*batch(device))


def validation(device: str, fixed: bool) -> None:
    model = Net().to(device)
    training = Training(model, device)
    for i in range(STEPS):
        training.step(*batch(device))
        if i == BAD_STEP:
            model.peak.factor = 1.0 if fixed else 1e6
            model.eval()
            with torch.no_grad(), torch.autocast(training.kind, dtype=torch.float16):
                model(batch(device)[0])
            model.train()
            model.peak.factor = 1.0


def exception(device: str, fixed: bool) -> None:
    model = Net().to(device)
    training = Training(model, device)
    for i in range(STEPS):
        model.peak.factor = 1e6 if i == BAD_STEP and not fixed else 1.0
        if not torch.isfinite(training.step(*batch(device))):
            raise SystemExit(f"loss is not finite at step {i}")


def compiled(device: str, fixed: bool, mode: str = "default") -> None:
    model = Net().to(device)
    training = Training(model, device, forward=torch.compile(model, mode=mode))
    for i in range(STEPS):
        x, y = batch(device)
        if i == BAD_STEP and not fixed:
            x = x * 1e6  # beyond fp16 where the first layer casts it
        training.step(x, y)


def reduce_overhead(device: str, fixed: bool) -> None:
    compiled(device, fixed, "reduce-overhead")


def captured_graph(device: str, fixed: bool) -> None:
    """A whole step as a CUDA graph that is replayed."""
    model = Net().to(device)
    on_gpu = device.startswith("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=on_gpu)
    x, y = batch(device)

    def train() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if not on_gpu:
        for _ in range(STEPS):
            train()
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    for i in range(STEPS):
        fresh, labels = batch(device)
        if i == BAD_STEP and not fixed:
            fresh[0, 0] = float("nan")
        x.copy_(fresh)
        y.copy_(labels)
        graph.replay()
    torch.cuda.synchronize()


_AT_PEAK = Expected("overflow", "aten::mul", "peak", "forward")
PROGRAMS: dict[str, tuple[Callable[[str, bool], None], Expected]] = {
    "foreach": (foreach, _AT_PEAK),
    "fused": (fused, _AT_PEAK),
    "bfloat16": (bfloat16, Expected("divide_by_zero", "aten::div", "peak", "forward")),
    "attention": (attention, Expected("overflow", "aten::mm", "1", "forward")),
    "side_stream": (side_stream, _AT_PEAK),
    "checkpointed": (checkpointed, _AT_PEAK),
    "channels_last": (channels_last, Expected("overflow", "aten::mul", "1", "forward")),
    "sharded": (sharded, _AT_PEAK),
    "pinned_loader": (pinned_loader, Expected("bad_input", "<batch>", None, None)),
    "fp8_cast": (fp8_cast, Expected("overflow", "aten::_to_copy", "peak", "forward")),
    "validation": (validation, Expected("overflow", "aten::mul", "peak", "validation", BAD_STEP + 1)),
    "exception": (exception, _AT_PEAK),
    "compiled": (compiled, Expected(None, "compiled_graph", None, "forward")),
    "reduce_overhead": (reduce_overhead, Expected(None, "compiled_graph", None, "forward")),
    "captured_graph": (captured_graph, Expected(None, None, None, None, status="any")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=PROGRAMS, nargs="?")
    parser.add_argument("--list", action="store_true", help="names, and what is expected of each, as JSON")
    parser.add_argument("--fixed", action="store_true", help="train the repaired twin")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.list or args.name is None:
        print(json.dumps([(name, asdict(expected)) for name, (_, expected) in PROGRAMS.items()]))
        return
    torch.manual_seed(1)
    PROGRAMS[args.name][0](args.device, args.fixed)
    print("trained to its end")


if __name__ == "__main__":
    main()
