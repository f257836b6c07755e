# SPDX-License-Identifier: Apache-2.0
"""What a program writes to its parameters after its last step is in no step's numbers: it is read when the run ends."""
from __future__ import annotations

import pytest
import torch
from step_runs import batch, net, watched
from torch.nn import functional as F

STEPS = 20


def loop(last):
    """`last` is done to the parameters after the last step."""
    def build():
        model = net()
        model.mask = torch.nn.Parameter(torch.full((3,), -torch.inf), requires_grad=False)
        model.spare = torch.nn.Parameter(torch.full((3,), torch.nan))  # trained by nobody
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = batch()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            if i == STEPS - 1:
                with torch.no_grad():
                    for p in model[0].parameters():
                        last(p)

        return step, model, opt

    return build


def test_weights_that_the_program_ruins_at_its_end_are_a_fault(tmp_path, library):
    run = watched(loop(lambda p: p.div_(0)), tmp_path, STEPS)
    assert run.report["verdict"]["status"] == "fault"
    assert run.headline["op"] == "aten::div_"


def test_weights_that_it_scales_are_clean(tmp_path, library):
    run = watched(loop(lambda p: p.div_(2)), tmp_path, STEPS)
    assert (run.report["verdict"]["status"], run.report["findings"]) == ("clean", [])


def by_hand(write, lr):
    """A loop without an optimizer."""
    def build():
        model = net()

        def step(i):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                write(p, lr(i))
                p.grad = None

        return step, model

    return build


def by_data(p, lr):
    p.data -= lr * p.grad


def without_gradients(p, lr):
    with torch.no_grad():
        p -= lr * p.grad


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("write", [by_data, without_gradients])
def test_weights_that_a_loop_without_an_optimizer_ruins_were_not_bad_from_the_start(
        tmp_path, library, write, level):
    # Given a rate that passes fp32 late in training
    run = watched(by_hand(write, lambda i: 0.1 if i < 14 else 1e60), tmp_path, STEPS, level=level)
    # then that is the fault.
    assert run.report["verdict"]["status"] == "fault"
    assert not any("from the start" in f["title"] for f in run.report["findings"]), run.report["findings"]
    assert run.headline["op"] == "aten::mul", run.headline
    sound = watched(by_hand(write, lambda i: 0.1), tmp_path / "sound", STEPS, level=level)
    assert (sound.report["verdict"]["status"], sound.report["findings"]) == ("clean", [])


def restored(kept_as, scale=900.0, lives=True):
    """After the last step the model gets back what was kept of it, in another format. `lives` to the end."""
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(5, momentum=0.5), torch.nn.Linear(5, 3))
        model.register_buffer("mask", torch.full((3,), -torch.inf))
        model.register_buffer("shown", torch.zeros(3))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        models = [model]
        del model

        def step(i):
            model = models[0]
            x = torch.randn(8, 5) * torch.tensor([1.0, 2.0, scale, 1.0, 3.0])
            opt.zero_grad()
            F.cross_entropy(model(x), torch.randint(0, 3, (8,))).backward()
            opt.step()
            if i == STEPS - 1:
                state = {k: v.to(kept_as) if v.is_floating_point() else v for k, v in model.state_dict().items()}
                model.load_state_dict(state)
                model.shown.copy_(torch.full((3,), -torch.inf))  # now all are masked
                if not lives:
                    opt.param_groups.clear()
                    opt.state.clear()
                    models.clear()

        return (step,)

    return build


@pytest.mark.parametrize("level", ["live", "steps"])
@pytest.mark.parametrize("lives", [True, False])
def test_a_buffer_that_is_infinite_after_the_last_step_is_a_fault(tmp_path, library, level, lives):
    run = watched(restored(torch.float16, lives=lives), tmp_path, STEPS, level=level)
    assert run.report["verdict"]["status"] == "fault", run.report["findings"]
    assert any("0.running_var" in sink for sink in run.headline["sinks"]), run.headline
    for sound in (restored(torch.float32, lives=lives), restored(torch.float16, 1.0, lives)):
        twin = watched(sound, tmp_path / "sound", STEPS, level=level)
        assert (twin.report["verdict"]["status"], twin.report["findings"]) == ("clean", [])


def spoilt_at(spoils, evaluates):
    """Running statistics of a batch of one, in step 4; nothing else reads them."""
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
        model.register_buffer("var", torch.ones(5))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = torch.randn(8, 5), torch.randint(0, 3, (8,))
            rows = 1 if i == spoils else 8
            model.var.lerp_(x[:rows].var(0), 0.1)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            if evaluates:
                with torch.no_grad():
                    model(x / model.var)

        return step, model, opt

    return build


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("evaluates", [True, False])
def test_steps_of_which_nothing_was_kept_count_as_bad_while_a_buffer_is(tmp_path, library, evaluates):
    run = watched(spoilt_at(4, evaluates), tmp_path, STEPS)
    bad = run.headline["bad_steps"]
    assert run.headline["op"] == "aten::var", run.report["findings"]
    assert bad["first_step"] == 4 and (bad["open"] or bad["count"] >= STEPS - 4), bad
    assert bad["open"] or bad["last_step"] >= STEPS - 1, bad
    assert len([f for f in run.report["findings"] if f["severity"] == "fault"]) == 1, run.report["findings"]
    sound = watched(spoilt_at(None, evaluates), tmp_path / "sound", STEPS)
    assert (sound.report["verdict"]["status"], sound.report["findings"]) == ("clean", [])
