# SPDX-License-Identifier: Apache-2.0
"""A run comes out with the same bits under `nanhunt run` as alone: at every level, through a bad step."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

import ready_python  # noqa: E402
from hunting import cli, hunt  # noqa: E402

SCRIPTS = HERE / "neutral"
LEVELS = ("live", "ops", "steps")
MODELS = ("mlp", "cnn", "transformer")
BAD_STEP = 60


@functools.cache
def _alone(script: str, *arguments: str) -> dict:
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [*ready_python.command(), str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def _watched(out: Path, level: str, script: str, *arguments: str):
    options = ("--keep", "3") if level == "live" else ()
    done = hunt(out, level, SCRIPTS / script, *arguments, options=options)
    assert done.status == 0, done.told()
    lines = [line for line in done.printed.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]), done


def _both(out: Path, level: str, script: str, *arguments: str):
    cli()
    with ThreadPoolExecutor(max_workers=2) as pool:
        alone = pool.submit(_alone, script, *arguments)
        watched = pool.submit(_watched, out, level, script, *arguments)
        return alone.result(), *watched.result()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", MODELS)
def test_training_has_the_same_bits_watched_and_alone(tmp_path, model, level):
    # Given 200 steps of a model under fp16 autocast with a loss scaler, one of which overflows,
    # when they run alone and watched
    alone, watched, done = _both(tmp_path / "run", level, "train.py", model)
    # then the overflow was seen and attributed,
    assert alone["skipped"] >= 1
    assert done.headline["step"] == BAD_STEP, done.told()
    assert level == "steps" or done.headline["op"] is not None, done.told()
    # and weights, buffers, gradients, optimizer, scaler, losses and random states have the same bits.
    assert watched == alone, done.told()


@pytest.mark.parametrize("level", LEVELS)
def test_functions_have_the_same_bits_watched_and_alone(tmp_path, level):
    alone, watched, done = _both(tmp_path / "run", level, "functions.py")
    assert watched.keys() == alone.keys()
    differ = {name for name in alone if alone[name] != watched[name]}
    assert differ == set(), done.told()
