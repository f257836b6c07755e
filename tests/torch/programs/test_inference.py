# SPDX-License-Identifier: Apache-2.0
"""Programs that train nothing: each call of an outermost module is a step. What a call gives is judged, and the end of
the program; masks, NaN that are replaced and infinities that vanish are no harm."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
from pathlib import Path

import pytest
import ready_python
import torch
from hunting import cli, hunt, with_package
from own_programs import LEVELS, Net, assert_silent, data, told
from saved import records_of
from step_runs import run_once
from torch import nn
from torch.nn import functional as F

STEPS = 8


def calling(make, call, how=torch.no_grad, train=False):
    """`call(model, i)` in each step, with gradients as `how` has them."""

    def build():
        torch.manual_seed(0)
        model = make()
        model.train(train)

        def step(i):
            with how():
                call(model, i)

        return step, model

    return build


class Attention(nn.Module):
    """One head; rows that may look at nothing become NaN, which `mends` replaces."""

    def __init__(self, mends):
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.mends = mends

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2)).masked_fill(~mask, -math.inf).softmax(-1)
        return (weights.nan_to_num(0.0) if self.mends else weights) @ v


def padded_rows(model, i):
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = i < 3  # from then on a row that looks at nothing
    return model(torch.randn(5, 6), mask)


class Decoder(nn.Module):
    """A norm of squares, which leaves 16 bits."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.norm = Squares()

    def forward(self, z):
        return self.norm(self.body(z))


class Squares(nn.Module):
    def forward(self, x):
        return x / (x * x).mean(-1, keepdim=True).sqrt() * (x * x)


def black_images(dtype):
    def call(model, i):
        model.to(dtype)
        image = model((torch.randn(4, 6) * (2000 if i == 3 else 1)).to(dtype)).float()
        return (image.nan_to_num(0.0, 0.0, 0.0) / 2 + 0.5).clamp(0, 1)

    return call


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(7, 6)

    def forward(self, x, t):
        return self.net(torch.cat([x, t.expand(len(x), 1)], 1)).tanh()


def sampling(floor):
    """As a scheduler divides by the noise that is left, in plain code between two calls."""
    kept = {}

    def call(model, i):
        x = kept.get("x") if i else torch.randn(4, 6)
        left = 1 - torch.tensor(i / 5.0).clamp(max=1.0)
        noise = model(x, left)
        kept["x"] = (x - noise * left) / left.clamp_min(floor) * left + 0.1 * noise

    return call


def log_of_no_noise(model, i):
    """The noise level ends at 0, and its logarithm at -Inf: what is made of that is finite."""
    sigma = torch.tensor(1 - i / (STEPS - 1.0))
    h = sigma.log().neg() - 0.5
    return model(torch.randn(4, 6), sigma) * (-h).expm1()


class Sharp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, x):
        return self.net(x)


def entropy(smallest):
    """0 log 0 in the measure of one batch."""

    def call(model, i):
        x, _ = data()
        p = model(x * (1e5 if i == 4 else 1)).softmax(-1)
        return -(p * p.clamp_min(smallest).log()).sum(-1).mean().item()

    return call


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.gain = Exponent()

    def forward(self, x):
        gain = self.gain(x)
        return self.net(x) * gain / gain.max()


class Exponent(nn.Module):
    def forward(self, x):
        return x.exp().mean(1, keepdim=True)


def large_inputs(at):
    def call(model, i):
        x, _ = data()
        logits = model(x * (200 if i == at else 1))
        return logits.argmax(1).float().mean()

    return call


class Standardised(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.net = Net()

    def forward(self, x):
        return self.net((x - x.mean(0)) / (x.std(0) + self.eps))


def same_column(model, i):
    x, _ = data()
    if i == 3:
        x[:, 1] = 1.0
    return model(x).argmax(1)


grads_on = contextlib.nullcontext
PROGRAMS = {
    "rows that look at nothing": (calling(lambda: Attention(False), padded_rows),
                                  calling(lambda: Attention(True), padded_rows),
                                  ("invalid", "aten::_softmax", None), 3),
    "a decoder in fp16 that gives black images": (
        calling(Decoder, black_images(torch.float16)), calling(Decoder, black_images(torch.float32)),
        ("overflow", "aten::mul", "norm"), 3),
    "a scheduler between two calls": (calling(Noise, sampling(0.0)), calling(Noise, sampling(1e-3)),
                                      ("divide_by_zero", "aten::div", None), 5),
    "a measure of a batch": (calling(Sharp, entropy(0.0)), calling(Sharp, entropy(1e-6)),
                             ("divide_by_zero", "aten::log", None), 4),
    "inference mode": (calling(lambda: Standardised(0.0), same_column, torch.inference_mode),
                       calling(lambda: Standardised(1e-5), same_column, torch.inference_mode),
                       ("divide_by_zero", "aten::div", None), 3),
    "neither eval nor no_grad": (calling(Scaled, large_inputs(4), grads_on, train=True),
                                 calling(Scaled, large_inputs(-1), grads_on, train=True),
                                 ("overflow", "aten::exp", "gain"), 4),
    "the first call": (calling(Scaled, large_inputs(0), grads_on), calling(Scaled, large_inputs(-1), grads_on),
                       ("overflow", "aten::exp", "gain"), 0),
    "frozen weights": (calling(lambda: Scaled().requires_grad_(False), large_inputs(4), grads_on),
                       calling(lambda: Scaled().requires_grad_(False), large_inputs(-1), grads_on),
                       ("overflow", "aten::exp", "gain"), 4),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_call_that_went_bad_is_named_and_the_mended_program_is_clean(name, level, tmp_path):
    bad, mended, (kind, op, module), step = PROGRAMS[name]
    said = told(bad, tmp_path / "bad", level, STEPS)
    assert said.what[:3] == (kind, op, "forward") and (module is None or said.what[3] == module), said.show()
    assert said.first["step"] == step and len(said.loud) == 1, said.show()
    assert said.first["call_site"].startswith("test_inference.py:"), said.first
    assert not said.run.report["coverage"]["trained"], said.run.report["coverage"]
    assert_silent(mended, tmp_path / "mended", level, STEPS)


@pytest.mark.parametrize("level", LEVELS)
def test_each_call_is_a_step_and_healthy_ones_are_dropped(level, tmp_path):
    said = told(calling(Net, lambda model, i: model(data()[0])), tmp_path, level, 20)
    assert said.status == "clean" and said.run.report["coverage"]["steps"] == 20, said.show()
    endings = [(row["step"], row["ending"]) for row in said.run.records("steps")]
    assert endings == [*[(i, "forward") for i in range(19)], (19, "end")], endings
    heard = {row["step"] for row in said.run.records("ops")}
    assert heard == ({0} if level == "live" else set(range(20))), heard


@pytest.mark.parametrize("level", LEVELS)
def test_infinities_that_vanish_are_clean(level, tmp_path):
    assert_silent(calling(Noise, log_of_no_noise), tmp_path, level, STEPS)


def test_at_level_steps_a_bad_call_is_told_without_its_operation(tmp_path):
    said = told(calling(Scaled, large_inputs(4)), tmp_path / "bad", "steps", STEPS)
    assert said.status == "fault" and said.first["step"] == 4, said.show()
    assert "what a forward gave" in said.first["title"] and said.first["phase"] == "forward", said.show()
    assert_silent(calling(Scaled, large_inputs(-1)), tmp_path / "mended", "steps", STEPS)


GENERATE = """
import sys
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = Mix()
        self.head = nn.Linear(8, 11)
    def forward(self, ids, cache):
        h = self.embed(ids)
        cache = h if cache is None else torch.cat([cache, h], 1)
        return self.head(self.mix(cache)), cache

class Mix(nn.Module):
    def forward(self, cache):
        return cache.mean(1) * (GAIN if cache.shape[1] > 3 else 1.0)

torch.manual_seed(0)
model = Tiny().eval()
ids, cache = torch.zeros(1, 1, dtype=torch.long), None
with torch.GRADIENTS():
    for i in range(8):
        logits, cache = model(ids, cache)
        ids = torch.multinomial(torch.softmax(logits, -1), 1)
sys.exit(0)
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gradients", ["no_grad", "inference_mode", "enable_grad"])
@pytest.mark.parametrize("gain", ["3e39", "1.0"])
def test_a_generation_that_raises_is_quoted_beside_its_origin(gain, gradients, level, library, tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(GENERATE.replace("GAIN", gain).replace("GRADIENTS", gradients))
    found = hunt(tmp_path / "run", level, script)
    bad = gain != "1.0"
    assert (found.status, found.verdict) == ((1, "fault") if bad else (0, "clean")), found.told()
    if not bad:
        assert found.report["verdict"]["headline"].startswith("No harmful NaN or Inf in 8 forwards"), found.told()
        return
    first = found.headline
    assert (first["class"], first["op"], first["module"]) == ("overflow", "aten::mul", "mix"), found.told()
    assert (first["step"], first["phase"], first["call_site"]) == (3, "forward", "sample.py:19"), found.told()
    assert "probability tensor contains either" in first["explanation"], first["explanation"]
    assert "step 3 (a forward: nothing was trained)" in found.errors, found.errors


@pytest.mark.parametrize("level", LEVELS)
def test_no_word_of_training_is_said_of_a_run_without_it(level, library, tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(GENERATE.replace("GAIN", "3e39").replace("GRADIENTS", "no_grad"))
    hunt(tmp_path / "run", level, script)
    told_text = subprocess.run([cli(), "report", "--full", tmp_path / "run"],
                               capture_output=True, text=True, check=False).stdout
    words = told_text.split("What to do")[0] + told_text.split("\nWatched")[1].split("Where next")[0]
    assert "3 (a forward: nothing was trained)" in words
    for word in ("loss", "optimizer", "gradient", "scaler", "what is trained"):
        assert word not in words.lower(), (word, words)
    checked = subprocess.run([cli(), "check", tmp_path / "run"], capture_output=True, text=True, check=False)
    assert checked.returncode == 1 and "nothing was trained" in checked.stdout + checked.stderr, checked


def evaluated_first(bad_at, broken_step, make_optimizer_first):
    """Evaluates three times, then trains."""

    def build():
        torch.manual_seed(0)
        model = Scaled()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2) if make_optimizer_first else None
        made = {"opt": opt}

        def step(i):
            x, y = data()
            if i < 3:
                model.eval()
                with torch.no_grad():
                    model(x * (200 if i == bad_at else 1))
                return
            model.train()
            made["opt"] = made["opt"] or torch.optim.SGD(model.parameters(), lr=1e-2)
            made["opt"].zero_grad()
            F.cross_entropy(model(x * (200 if i - 3 == broken_step else 1)), y).backward()
            made["opt"].step()

        return step, model

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_the_first_step_of_a_training_is_step_0_whatever_was_evaluated_before(optimizer_first, level, tmp_path):
    said = told(evaluated_first(-1, 2, optimizer_first), tmp_path / "bad", level, 7)
    assert said.what == ("overflow", "aten::exp", "forward", "gain") and said.first["step"] == 2, said.show()
    assert said.run.report["coverage"]["trained"] and said.run.report["coverage"]["steps"] == 4, said.show()
    assert [row["step"] for row in said.run.records("steps")] == [0, 1, 2, 3]
    assert len(list((tmp_path / "bad").rglob("attempt-*"))) == 1, "evaluations that were healthy leave nothing"
    assert_silent(evaluated_first(-1, -1, optimizer_first), tmp_path / "mended", level, 7)


@pytest.mark.parametrize("level", LEVELS)
def test_a_bad_evaluation_before_a_sound_training_is_told_as_the_forward_that_it_is(level, tmp_path):
    said = told(evaluated_first(1, -1, False), tmp_path, level, 7)
    assert said.what == ("overflow", "aten::exp", "forward", "gain") and said.first["step"] == 1, said.show()
    assert said.run.report["coverage"]["steps"] == 4, "those of the training"


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_program_catches_is_judged_when_it_goes_on(level, tmp_path):
    def call(model, i):
        with contextlib.suppress(RuntimeError):
            torch.multinomial(model(data()[0] * (200 if i == 2 else 1)).softmax(-1), 1)

    said = told(calling(Scaled, call), tmp_path / "bad", level, STEPS)
    assert said.what == ("overflow", "aten::exp", "forward", "gain") and said.first["step"] == 2, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_that_is_no_numbers_fault_is_quoted_and_clean(level, library, tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(GENERATE.replace("GAIN", "1.0").replace("GRADIENTS", "no_grad").replace(
        "sys.exit(0)", "x = (logits / 0).nan_to_num(0, 0, 0)\nraise KeyError('prompt')"))
    found = hunt(tmp_path / "run", level, script)
    assert (found.status, found.verdict) == (1, "clean"), found.told()
    assert "KeyError: 'prompt'" in found.report["verdict"]["headline"], found.told()


def test_thousands_of_calls_hold_no_more_than_a_few(tmp_path):
    run = run_once(calling(Net, lambda model, i: model(torch.ones(2, 6))), 3000, tmp_path / "run")
    assert run.report["verdict"]["status"] == "clean" and run.report["coverage"]["steps"] == 3000
    size = sum(f.stat().st_size for f in (tmp_path / "run").rglob("*.nht"))
    assert size < 1_000_000, size
    assert {row["step"] for row in records_of(run.path, "ops")} == {0}


def test_frozen_modules_and_steps_that_are_told_stay_what_they_were(tmp_path):
    # given a training whose steps the program marks itself, with a frozen part called in each
    import nanhunt

    frozen, model = Net().requires_grad_(False), nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with nanhunt.watch(out=tmp_path / "run", quiet=True) as watch:
        for _ in range(4):
            x, y = data()
            with torch.no_grad():
                features = frozen(x)
            opt.zero_grad()
            F.cross_entropy(model(features), y).backward()
            opt.step()
    report = json.loads(watch.report("json"))
    assert report["coverage"]["trained"] and report["coverage"]["steps"] == 4


def test_a_program_that_calls_no_model_leaves_no_run(library, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("import torch\nprint(torch.ones(3).sum())\n")
    done = subprocess.run([cli(), "run", "--out", tmp_path / "run", "--", *ready_python.command(), script],
                          capture_output=True, text=True, timeout=600, env=with_package(), check=False)
    assert done.returncode == 0 and not (tmp_path / "run").exists(), done.stderr
    assert "no model was called" in done.stderr, done.stderr


LEAVES = """
import os, shutil, sys
sys.path.insert(0, sys.argv[2])
import torch
import nanhunt
model = torch.nn.Linear(4, 1)
x = torch.randn(8, 4)
watch = nanhunt.watch(model, quiet=True)
for i in range(3):
    model(x * (float("nan") if i == 1 else 1.0))
if sys.argv[1] == "removed":
    shutil.rmtree("nanhunt-run")
os.makedirs("elsewhere")
os.chdir("elsewhere")
model(x).sum().backward()
print("trained", bool(torch.isfinite(model.weight.grad).all()))
"""


@pytest.mark.parametrize("how", ["kept", "removed"])
def test_training_after_inference_goes_on_wherever_the_program_went_meanwhile(how, library, tmp_path):
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    package = Path(__file__).resolve().parents[3] / "hooks" / "torch"
    done = subprocess.run([*ready_python.command(), script, how, package], capture_output=True, text=True, timeout=600,
                          cwd=tmp_path, env=with_package(), check=False)
    assert (done.returncode, done.stdout) == (0, "trained True\n"), done.stderr
    assert (tmp_path / "nanhunt-run").exists() == (how == "kept")


def adapted(guard):
    """Parameters that no module has are adapted by torch.func.grad; from step 3 on the gradient is 0, and divided by
    its norm."""

    def build():
        torch.manual_seed(0)
        model = Net()

        def loss(params, x, margin):
            return torch.relu(margin - torch.func.functional_call(model, params, (x,))).mean()

        def step(i):
            params = {name: p.detach().clone() for name, p in model.named_parameters()}
            x = data()[0]
            with torch.no_grad():
                slopes = torch.func.grad(loss)(params, x, 1.0 if i < 3 else -100.0)
                norm = torch.sqrt(sum((g**2).sum() for g in slopes.values()))
                params = {name: p - slopes[name] / (norm + guard) for name, p in params.items()}
            for _ in range(2):
                slopes = torch.func.grad(loss)(params, x, 1.0)
                params = {name: p - 0.1 * slopes[name] for name, p in params.items()}
            return loss(params, x, 1.0).item()

        return step, model

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_that_derivatives_of_a_transform_adapt_are_bad_by_the_operation_that_made_them_so(level, tmp_path):
    said = told(adapted(0.0), tmp_path, level)
    assert said.what[:2] == ("divide_by_zero", "aten::div") and len(said.loud) == 1, said.show()
    assert "what a forward gave" in said.first["sinks"] and said.first["phase"] == "forward", said.show()
    unwatched = said.run.report["coverage"]["unwatched"]
    assert not [text for text in map(str, unwatched) if "errors" in text or "captures" in text], unwatched
    assert_silent(adapted(1e-8), tmp_path, level)
