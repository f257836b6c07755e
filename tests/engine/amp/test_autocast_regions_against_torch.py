# SPDX-License-Identifier: Apache-2.0
"""Regions, the cache of casts, promotion and custom functions: the engine on the CPU's lists and torch.autocast("cpu")
get the same random calls, and must say the same after each: formats, values, casts made, gradients, state.
"""

import random
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SEQUENCES = 1500
FORMATS = ["fp16", "bf16", "-"]
OF_ONE = ["softmax", "exp", "sum"]
OF_TWO = ["matmul", "matmul", "matmul", "linear", "mse_loss", "l1_loss", "binary_cross_entropy", "prelu", "cat", "add"]


@pytest.fixture(scope="module")
def programs(torch_python, binaries):
    program = binaries / "engine_autocast_script"
    assert program.exists(), f"{program} was not built"
    return [str(program)], [torch_python, str(HERE / "torch_autocast_script.py")]


def answers(command: list[str], script: list[str]) -> list[str]:
    run = subprocess.run(command, input="\n".join(script) + "\n", capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def sequence(seed: int) -> list[str]:
    rng = random.Random(seed)
    lines, depth, off = ["new"], 0, False
    for _ in range(rng.randint(4, 24)):
        kind = rng.random()
        tensors = "wwwvvhuabcd"
        left, right = rng.choice(tensors), rng.choice("wwwvvha" if rng.random() < 0.8 else tensors)
        if kind < 0.2 and depth < 4:
            enabled, dtype, cache = rng.choice("1110"), rng.choice(FORMATS), rng.choice("--10")
            lines.append(f"region {enabled} {'fp32' if rng.random() < 0.03 else dtype} {cache}")
            depth += 1
        elif kind < 0.3 and depth > 0:
            lines.append("exit")
            depth -= 1
        elif kind < 0.37:
            off = not off
            lines.append("no_grad" if off else "grad")
        elif kind < 0.4:
            lines.append(rng.choice(["clear", f"write {rng.choice('wv')} {rng.randint(1, 4)}"]))
        elif kind < 0.5:
            cast = rng.choice(["-", "-", "fp16", "bf16", "fp32"])
            # custom_bwd asks for what custom_fwd notes
            lines.append(f"function {cast} {rng.choice('110')} {left} {right}")
        elif kind < 0.62 and not off:
            lines.append("backward")
        elif kind < 0.7:
            lines.append(f"op {rng.choice(OF_ONE)} {left}")
        else:
            lines.append(f"op {rng.choice(OF_TWO)} {left} {right}")
    return lines + ["grad", "backward"]


def test_random_calls_have_the_outcome_that_they_have_in_torch(programs):
    # given
    script = [line for seed in range(SEQUENCES) for line in sequence(seed)]
    # when
    ours, torch = (answers(command, script) for command in programs)
    # then
    assert len(ours) == len(torch) == len(script)
    for i, (mine, theirs) in enumerate(zip(ours, torch, strict=True)):
        if mine != theirs:
            start = max(k for k in range(i + 1) if script[k] == "new")
            told = "\n".join(f"  {script[k]}  ->  {ours[k]}" for k in range(start, i + 1))
            pytest.fail(f"after\n{told}\ntorch says: {theirs}")
    # and the sequences went through what there is to see
    seen = "\n".join(f"{call} -> {said}" for call, said in zip(script, ours, strict=True))
    for outcome in ("refused", "warned", "casts 0", "casts 1", "casts 2", " uncached", "forward true", "forward false",
                    "backward true", "backward false", " w fp32", " h fp16", " u fp32"):  # fmt: skip
        assert seen.count(outcome) > 10, outcome
