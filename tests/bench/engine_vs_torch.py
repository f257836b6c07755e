# SPDX-License-Identifier: Apache-2.0
"""Step times of the bundled engine against eager PyTorch on the CPU: equal models, one core, interleaved.

Times by the clock, and of the processor: on a busy machine only the latter mean something.

    python3 tests/bench/engine_vs_torch.py --build build/ci --json out.json

Needs a Python with torch: --torch-python, or the variable NANHUNT_TORCH_PYTHON, or torch in this Python. One is made by
`python3 -m venv torch && torch/bin/pip install torch numpy`. Without torch only the engine's formats are compared.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

GPT = {"vocabulary": 96, "layers": 6, "dims": 128, "heads": 4, "batch": 8, "tokens": 128}
CNN = {"channels": 16, "batch": 64}


def make_cnn(torch):
    nn, c = torch.nn, CNN["channels"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(c)
            self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(c)

        def forward(self, x):
            inner = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(inner)) + x)

    model = nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(), Block(), nn.MaxPool2d(2),
        nn.Conv2d(c, 2 * c, 3, padding=1, bias=False), nn.BatchNorm2d(2 * c), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(8 * c, 10))
    inputs = torch.rand(CNN["batch"], 1, 8, 8)
    targets = torch.randint(10, (CNN["batch"],))
    return model, inputs, targets, torch.nn.functional.cross_entropy


def make_gpt(torch, fused_attention):
    nn, functional = torch.nn, torch.nn.functional
    dims, heads, tokens = GPT["dims"], GPT["heads"], GPT["tokens"]

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(dims, dims) for _ in range(4))
            self.register_buffer("later", torch.ones(tokens, tokens).triu(1).bool())

        def split(self, x):
            return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

        def forward(self, x):
            query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
            if fused_attention:
                mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            else:
                scores = query @ key.transpose(-2, -1) * (dims // heads) ** -0.5
                mixed = scores.masked_fill(self.later, float("-inf")).softmax(-1) @ value
            return self.out(mixed.transpose(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2, self.attention = nn.LayerNorm(dims), nn.LayerNorm(dims), Attention()
            self.fc1, self.fc2 = nn.Linear(dims, 4 * dims), nn.Linear(4 * dims, dims)

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(GPT["vocabulary"], dims), nn.Embedding(tokens, dims)
            self.blocks = nn.ModuleList(Block() for _ in range(GPT["layers"]))
            self.norm, self.head = nn.LayerNorm(dims), nn.Linear(dims, GPT["vocabulary"], bias=False)
            for embedding in (self.token, self.position):
                nn.init.normal_(embedding.weight, std=0.02)

        def forward(self, x):
            x = self.token(x) + self.position(torch.arange(x.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    def loss(logits, targets):
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    text = torch.randint(GPT["vocabulary"], (GPT["batch"], tokens + 1))
    return Gpt(), text[:, :-1].contiguous(), text[:, 1:].contiguous(), loss


def torch_worker(name):
    """The protocol of engine_step.cpp, for PyTorch."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, inputs, targets, loss_of = (
        make_cnn(torch) if name == "cnn" else make_gpt(torch, fused_attention=name == "gpt-fused-attention"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    def step():
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    first = step().item()
    print("ready", sum(p.numel() for p in model.parameters()), first, torch.__version__, flush=True)
    for line in sys.stdin:
        start, processor = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        took, processor = time.perf_counter() - start, time.process_time() - processor
        print(took * 1e3 / int(line), processor * 1e3 / int(line), flush=True)


class Side:
    """One process that times steps when it is told to."""

    def __init__(self, label, command, core):
        if core is not None and shutil.which("taskset"):
            command = ["taskset", "-c", str(core), *command]
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.label, self.times, self.processor_times = label, [], []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        words = self.process.stdout.readline().split()
        if not words or words[0] != "ready":
            sys.exit(f"{label}: {' '.join(command)} did not start")
        self.parameters, self.loss = int(words[1]), float(words[2])
        self.version = words[3] if len(words) > 3 else None

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def find_torch(path):
    for python in filter(None, [path, os.environ.get("NANHUNT_TORCH_PYTHON"), sys.executable]):
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def measure(model, arguments, torch_python):
    engine = str(Path(arguments.build) / "bin" / "engine_step")
    sides = {"engine fp32": Side("engine fp32", [engine, model, "fp32"], arguments.core)}
    if not arguments.only_fp32:
        sides["engine fp16"] = Side("engine fp16", [engine, model, "fp16"], arguments.core)
    if torch_python:
        variants = {"torch fp32": model}
        if model == "gpt":
            variants["torch fp32, fused attention"] = "gpt-fused-attention"
        for label, name in variants.items():
            sides[label] = Side(label, [torch_python, __file__, "--worker", name], arguments.core)
    counts = {side.parameters for side in sides.values()}
    if len(counts) != 1:
        sys.exit(f"{model}: the models differ: " + ", ".join(f"{s.label} {s.parameters}" for s in sides.values()))
    steps = 20 if model == "cnn" else 1
    for repetition in range(arguments.repetitions + 3):
        for side in sides.values():
            took, processor = side.run(steps)
            if repetition >= 3:  # the first warm up
                side.times.append(took)
                side.processor_times.append(processor)
    for side in sides.values():
        side.stop()
    base = sides["engine fp32"]

    def row(side):
        pairs = [ours / theirs for ours, theirs in zip(base.times, side.times, strict=True)]
        return {"median_ms": statistics.median(side.times), "min_ms": min(side.times),
                "processor_median_ms": statistics.median(side.processor_times), "first_loss": side.loss,
                "engine_fp32_over_this": {"of_medians": statistics.median(base.times) / statistics.median(side.times),
                                          "of_minima": min(base.times) / min(side.times),
                                          "median_of_pairs": statistics.median(pairs),
                                          "of_processor_medians": statistics.median(base.processor_times)
                                          / statistics.median(side.processor_times)}}

    return {"parameters": base.parameters, "torch": next((s.version for s in sides.values() if s.version), None),
            "sides": {label: row(side) for label, side in sides.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/ci", help="build folder with bin/engine_step (a Release build)")
    parser.add_argument("--torch-python", help="a Python that has torch")
    parser.add_argument("--model", choices=["cnn", "gpt"], action="append", help="default: both")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--core", type=int, help="pin every process to this core (taskset)")
    parser.add_argument("--only-fp32", action="store_true", help="without the engine's fp16")
    parser.add_argument("--json", help="write the results there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return torch_worker(arguments.worker)
    torch_python = find_torch(arguments.torch_python)
    if torch_python is None:
        print("no torch: " + __doc__.split("\n\n")[3].replace("\n", " "), file=sys.stderr)
    results = {model: measure(model, arguments, torch_python) for model in arguments.model or ["cnn", "gpt"]}
    for model, result in results.items():
        print(f"{model}: {result['parameters']} parameters, {arguments.repetitions} interleaved repetitions"
              + (f", torch {result['torch']}" if result["torch"] else ""))
        for label, row in result["sides"].items():
            ratio = row["engine_fp32_over_this"]
            print(f"  {label:28} median {row['median_ms']:8.3f} ms, min {row['min_ms']:8.3f}, processor"
                  f" {row['processor_median_ms']:8.3f}   engine fp32 / this: {ratio['of_medians']:.2f} (medians)"
                  f" {ratio['of_minima']:.2f} (minima) {ratio['of_processor_medians']:.2f} (processor time)")
    if arguments.json:
        written = {"repetitions": arguments.repetitions, "core": arguments.core, "models": results}
        Path(arguments.json).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
