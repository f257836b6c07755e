# SPDX-License-Identifier: Apache-2.0
"""The engine's loss scaler and torch's get the same random calls, and must say the same after each, to the bit."""

import random
import struct
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SEQUENCES = 3000


@pytest.fixture(scope="module")
def programs(torch_python, binaries):
    program = binaries / "engine_scaler_script"
    assert program.exists(), f"{program} was not built"
    return [str(program)], [torch_python, str(HERE / "torch_scaler_script.py")]


def bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def gradient(rng: random.Random, bad: float) -> str:
    kind = rng.random()
    if kind < bad:
        return rng.choice(["7f800000", "ff800000", "7fc00000"])
    if kind < bad + 0.05:
        return "-"
    if kind < bad + 0.15:
        return f"{rng.getrandbits(32):08x}"  # anything, subnormals and infinities included
    return bits(rng.uniform(-1, 1) * 2.0 ** rng.randint(-30, 30))


def number(rng: random.Random, *usual: float) -> float:
    return rng.choice(usual) if rng.random() < 0.7 else rng.uniform(min(usual), max(usual))


def iteration(rng: random.Random, bad: float) -> list[str]:
    """One training iteration, in the right order but for a call now and then."""
    lines = [f"scale {bits(rng.uniform(-4, 4))}"]
    for name in rng.choice(["A", "A", "B", "AB"]):
        lines.append(f"grads {name} " + " ".join(gradient(rng, bad) for _ in range(3)))
        if rng.random() < 0.4:
            lines.append(f"unscale {name}")
        lines.append(f"step {name}")
    lines.append("update")
    if rng.random() < 0.15:
        lines.insert(rng.randrange(len(lines) + 1), odd_call(rng))
    if rng.random() < 0.08:
        lines.pop(rng.randrange(len(lines)))
    if rng.random() < 0.05:
        rng.shuffle(lines)
    return lines


def odd_call(rng: random.Random) -> str:
    return rng.choice(
        [
            f"step {rng.choice('AB')}",
            f"unscale {rng.choice('AB')}",
            "update",
            f"set {number(rng, 65536.0, 1.0, 0.1, 1e38, 1e-45)!r}",
            f"interval {rng.randint(0, 4)}",
            f"growth {number(rng, 2.0, 1.5, 1.0, 0.5)!r}",
            f"backoff {number(rng, 0.5, 0.7, 1.0, 2.0)!r}",
            "reload",
        ]
    )


def sequence(seed: int) -> list[str]:
    rng = random.Random(seed)
    init = number(rng, 65536.0, 1.0, 0.1, 1e38, 2.0**-126, 2.0**-149)
    growth, backoff = number(rng, 2.0, 1.1, 4.0), number(rng, 0.5, 0.7, 0.25, 0.0)
    lines = [f"new {init!r} {growth!r} {backoff!r} {rng.choice([0, 1, 2, 3, 7])}"]
    bad = rng.choice([0.0, 0.02, 0.1, 0.5])
    for _ in range(rng.randint(1, 12)):
        lines += iteration(rng, bad)
    return lines


def answers(command: list[str], script: list[str]) -> list[str]:
    run = subprocess.run(command, input="\n".join(script) + "\n", capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_random_calls_have_the_outcome_that_they_have_in_torch(programs):
    # given
    script = [line for seed in range(SEQUENCES) for line in sequence(seed)]
    # when
    ours, torch = (answers(command, script) for command in programs)
    # then
    assert len(ours) == len(torch) == len(script)
    for i, (mine, theirs) in enumerate(zip(ours, torch, strict=True)):
        if mine != theirs:
            start = max(k for k in range(i + 1) if script[k].startswith("new"))
            told = "\n".join(f"  {script[k]}  ->  {ours[k]}" for k in range(start, i + 1))
            pytest.fail(f"after\n{told}\ntorch says: {theirs}")
    # and the sequences went through every kind of outcome
    for outcome in ("ran", "skipped", "unscaled", "refused: unscale_()", "refused: step()", "refused: No inf checks",
                    "refused: Attempted"):  # fmt: skip
        assert sum(line.startswith(outcome) for line in ours) > 20, outcome
