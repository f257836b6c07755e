# SPDX-License-Identifier: Apache-2.0
"""What a program does itself with gradients between backward and the optimizer has its phase and its op."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from op_rows import watched_ops
from own_programs import LEVELS, Net, assert_silent, data, told
from torch.nn import functional as F


def training(between, bad=(3,), scale=1.0):
    """`between(parameters, whether the fault is planted in this step)` runs after backward."""

    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (loss * scale).backward() if scale != 1 else loss.backward()
            between(list(model.parameters()), i in bad)
            opt.step()

        return step, model, opt

    return build


def clip(parameters, bad):
    """The limit is divided by a norm that is 0 where a mask left nothing of the gradients."""
    if bad:
        for p in parameters:
            p.grad.mul_(0)
    total = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
    factor = 1.0 / total
    for p in parameters:
        p.grad.mul_(factor)


def guarded_clip(parameters, bad):
    if bad:
        for p in parameters:
            p.grad.mul_(0)
    total = torch.sqrt(sum((p.grad**2).sum() for p in parameters))
    factor = 1.0 / (total + 1e-6)
    for p in parameters:
        p.grad.mul_(factor)


def unscale(scale_of):
    def between(parameters, bad):
        inverse = torch.tensor(1.0) / scale_of(bad)
        for p in parameters:
            p.grad.mul_(inverse)

    return between


@pytest.fixture(scope="module")
def ranks():
    """One rank, which averages with itself."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def average(parameters, bad, ok=False):
    """Shares are added up and divided by how many ranks gave one."""
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad.div_(0.0 if bad and not ok else dist.get_world_size())


def compressed(parameters, bad, ok=False):
    """Gradients go over the wire in fp16, multiplied so that small ones are not lost."""
    factor = 1e9 if bad and not ok else 1e3
    for p in parameters:
        wire = (p.grad * factor).half()
        dist.all_reduce(wire)
        p.grad.copy_(wire.float() / factor)


def gathered(parameters, bad, ok=False):
    """Averaged by hand over what each rank gave; the weights of the ranks do not add up to anything."""
    for p in parameters:
        shares = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, p.grad)
        weights = torch.zeros(()) if bad and not ok else torch.ones(())
        p.grad.copy_(torch.stack(shares).sum(0) / weights)


def mended(between):
    return lambda parameters, bad: between(parameters, bad, ok=True)


EXCHANGES = {
    "own averaging": (average, ("divide_by_zero", "aten::div_", "comm")),
    "own compression": (compressed, ("overflow", "aten::_to_copy", "comm")),
    "averaging by hand": (gathered, ("divide_by_zero", "aten::div", "comm")),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", EXCHANGES)
def test_a_fault_in_the_programs_own_exchange_between_ranks_is_found_there(name, level, ranks, tmp_path):
    fault, what = EXCHANGES[name]
    said = told(training(fault), tmp_path, level)
    assert said.status == "fault" and said.what == (*what, None) and said.first["step"] == 3, said.show()
    assert_silent(training(mended(fault)), tmp_path, level)


def surgery(guard):
    """PCGrad: what of a gradient points against another is taken away."""

    def between(parameters, bad):
        for p in parameters:
            other = p.grad * 0 if bad else torch.ones_like(p.grad)
            along = torch.dot(p.grad.flatten(), other.flatten())
            size = torch.dot(other.flatten(), other.flatten())
            p.grad.sub_(along / (size + guard) * other)

    return between


FAULTS = {
    "own clipping": (training(clip), training(guarded_clip), ("divide_by_zero", "aten::reciprocal", "clip", None)),
    "own unscaling": (
        training(unscale(lambda bad: torch.tensor(0.0 if bad else 4.0)), scale=4.0),
        training(unscale(lambda bad: torch.tensor(4.0)), scale=4.0),
        ("divide_by_zero", "aten::div", "unscale", None),
    ),
    "gradient surgery": (
        training(surgery(0.0)),
        training(surgery(1e-12)),
        ("divide_by_zero", "aten::div", "clip", "first.weight"),
    ),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_programs_own_code_after_backward_is_found_there(name, level, tmp_path):
    fault, twin, (cls, op, phase, _) = FAULTS[name]
    said = told(fault, tmp_path, level)
    assert said.status == "fault" and said.what[:3] == (cls, op, phase), said.show()
    assert said.first["step"] == 3
    assert_silent(twin, tmp_path, level)


def unscaled(between, bad):
    """A scaler has unscaled before the program's own code comes, and `scaler.step` does not look again."""

    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

        def step(i):
            x, y = data()
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            between(list(model.parameters()), i == bad)
            scaler.step(opt)
            scaler.update()

        return step, model, opt

    return build


def clipped(between, bad):
    """torch has clipped before the program's own code comes."""

    def own(parameters, is_bad):
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        between(parameters, is_bad)

    return training(own, bad=(bad,))


def by_data(guard):
    """torch counts no write of what `.data` gives."""

    def between(parameters, bad):
        for p in parameters:
            p.grad.data.div_(torch.tensor(0.0 if bad and not guard else 2.0))

    return between


def put_in_place(guard):
    """Gradients are others' from here on."""

    def between(parameters, bad):
        for p in parameters:
            p.grad = p.grad / torch.tensor(0.0 if bad and not guard else 2.0)

    return between


AFTER = {
    "clipping after unscaling": (unscaled, clip, guarded_clip, ("divide_by_zero", "aten::reciprocal", "clip")),
    "surgery after unscaling": (unscaled, surgery(0.0), surgery(1e-12), ("divide_by_zero", "aten::div", "clip")),
    "clipping after torch's": (clipped, clip, guarded_clip, ("divide_by_zero", "aten::reciprocal", "clip")),
    "data after torch's": (clipped, by_data(False), by_data(True), ("divide_by_zero", "aten::div_", None)),
    "others in their place": (unscaled, put_in_place(False), put_in_place(True), ("divide_by_zero", "aten::div", None)),
}


@pytest.mark.parametrize("step", [3, 10])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", AFTER)
def test_what_spoils_gradients_after_torch_has_unscaled_or_clipped_is_found_there(name, level, step, tmp_path):
    program, fault, twin, (cls, op, phase) = AFTER[name]
    said = told(program(fault, step), tmp_path, level, 12)
    # then the op is named, in that step
    assert said.status == "fault" and said.what[:2] == (cls, op) and said.first["step"] == step, said.show()
    assert phase in (None, said.first["phase"]), said.show()
    assert_silent(program(twin, step), tmp_path, level, 12)


def test_ops_after_backward_have_the_phases_of_what_they_do():
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data()
    with watched_ops() as heard:
        loss = F.cross_entropy(model(x), y)
        (loss * 8.0).backward()
        for p in model.parameters():
            p.grad.div_(8.0)
        total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_(1.0 / (total + 1e-6))
        opt.step()
        told_ = [(op.phase, op.name) for op in heard.ops]
    assert ("loss", "mul") in told_
    assert [phase for phase, name in told_ if name == "div_"] == ["unscale"] * 4
    assert {phase for phase, name in told_ if "norm" in name} == {"clip"}
    assert [phase for phase, name in told_ if name == "mul_"] == ["clip"] * 4


def test_a_further_loss_after_backward_is_a_loss():
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data()
    with watched_ops() as heard:
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        (out**2).mean().backward()
        opt.step()
        assert {op.phase for op in heard.named("pow")} == {"loss", "backward"} or [
            op.phase for op in heard.named("pow")
        ][0] == "loss"
        assert [op.phase for op in heard.named("mean")] == ["loss"]


def halve_anew(parameters, bad):
    for p in parameters:
        p.grad = p.grad / (0.0 if bad else 2.0)


FIRST, LATER = 12, 16


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [FIRST, LATER], ids=["at once", "later"])
@pytest.mark.parametrize(
    "write, guarded, op", [(clip, guarded_clip, "aten::reciprocal"), (halve_anew, halve_anew, "aten::div")]
)
def test_a_program_that_writes_its_gradients_only_from_a_late_step_on(write, guarded, op, bad, level, tmp_path):
    # Given a program whose own code after backward begins late
    calls = []

    def late(its):
        def between(parameters, is_bad):
            calls.append(0)
            if len(calls) > FIRST:
                its(parameters, is_bad)

        return between

    def run(its, bad):
        calls.clear()
        build = training(late(its), bad)

        def fresh():
            calls.clear()
            return build()

        return fresh

    said = told(run(write, (bad,)), tmp_path, level, steps=LATER + 2)
    # then the op is named.
    assert said.status == "fault" and said.first["step"] == bad, said.show()
    assert said.first["op"] == op, said.show()
    assert_silent(run(guarded, (bad,) if guarded is not write else ()), tmp_path, level, steps=LATER + 2)


def skipping(bad_step):
    """Gradients are cleared after the forward, and a step whose norm is not finite is skipped."""

    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            out = model(x)
            opt.zero_grad()
            loss = F.cross_entropy(out, y)
            (loss + torch.log(out.sum() * 0) if i == bad_step else loss).backward()
            if torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                opt.step()

        return step, model, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_the_program_skips_for_its_gradients_norm_is_a_warning(level, tmp_path):
    said = told(skipping(3), tmp_path / "bad", level)
    assert said.status == "warning" and said.first["op"] == "aten::log" and said.first["step"] == 3, said.show()
    assert_silent(skipping(None), tmp_path / "mended", level)


def through_an_update(bad_step):
    """What an inner optimizer has done is differentiated: the outer loss is of the updated weights."""

    def build():
        model = Net()
        outer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(i):
            x, y = data()
            outer.zero_grad()
            fast = model.last.weight * 1.0
            hidden = torch.tanh(model.first(x))
            (gradient,) = torch.autograd.grad(F.cross_entropy(hidden @ fast.T, y), fast, create_graph=True)
            updated = fast.clone()
            updated.grad = gradient
            torch.optim.SGD([updated], lr=0.1, differentiable=True).step()
            scores = hidden @ updated.T
            loss = F.cross_entropy(scores, y)
            (loss + torch.log(scores.sum() * 0) if i == bad_step else loss).backward()
            outer.step()

        return step, model, outer

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("error")  # of a tensor that is no leaf nobody asks for its gradient
def test_a_backward_through_an_optimizers_step_is_told_right(level, tmp_path):
    said = told(through_an_update(3), tmp_path / "bad", level)
    assert said.first["op"] == "aten::log" and said.first["class"] == "divide_by_zero", said.show()
    assert not any("errors inside" in note for note in said.run.notes), said.run.notes
    assert_silent(through_an_update(None), tmp_path / "mended", level)


def hooked(kind, bad_step):
    """A hook inside of backward divides a gradient by a size, which is 0 once."""

    def build():
        model = Net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        now = [0]

        def scaled(gradient):
            size = gradient.abs().amax() * (0 if now[0] == bad_step else 1)
            return gradient / size  # BUG

        def on_accumulated(parameter):
            parameter.grad = scaled(parameter.grad)

        if kind == "of a parameter":
            model.last.bias.register_hook(scaled)
        elif kind == "of a gradient that was accumulated":
            model.last.bias.register_post_accumulate_grad_hook(on_accumulated)
        elif kind == "of a module":
            model.last.register_full_backward_hook(lambda module, given, out: (scaled(given[0]), *given[1:]))

        def step(i):
            now[0] = i
            x, y = data()
            opt.zero_grad()
            hidden = torch.tanh(model.first(x))
            if kind == "of an activation":
                hidden.register_hook(scaled)
            F.cross_entropy(model.last(hidden), y).backward()
            opt.step()

        return step, model, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "kind", ["of a parameter", "of a gradient that was accumulated", "of a module", "of an activation"]
)
def test_what_a_hook_computes_inside_of_backward_has_the_line_of_the_hook(kind, level, tmp_path):
    said = told(hooked(kind, 3), tmp_path / "bad", level)
    first = said.first
    assert (first["class"], first["op"], first["step"]) == ("divide_by_zero", "aten::div", 3), said.show()
    assert first["phase"] == "backward", said.show()
    line = int(first["call_site"].rpartition(":")[2])
    assert Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1].endswith("# BUG"), first["call_site"]
    assert_silent(hooked(kind, None), tmp_path / "mended", level)


def shown_norm(parameters, bad):
    """A limit of infinity limits nothing: the norm is taken to be shown, and overflows where gradients are large."""
    for p in parameters:
        p.grad.mul_(1e25 if bad else 1.0)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm=float("inf"))


@pytest.mark.parametrize("level", LEVELS)
def test_the_norm_that_overflows_is_named_where_its_limit_is_infinite(level, tmp_path):
    said = told(training(shown_norm), tmp_path / "bad", level)
    assert said.what[:3] == ("overflow", "aten::_foreach_norm", "clip") and said.first["step"] == 3, said.show()
    assert_silent(training(shown_norm, bad=()), tmp_path / "twin", level)
