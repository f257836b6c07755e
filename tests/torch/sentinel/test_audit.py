# SPDX-License-Identifier: Apache-2.0
"""What an optimizer is about to store is foreseen: bad where it will be, silence where it will not."""
from __future__ import annotations

import copy
import json
import math
import random

import nanhunt
import pytest
import torch
from watched import report_of, watching

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def audit(tmp_path):
    from nanhunt._sentinel.audit import Audit

    made = []

    def listeners(session, values):
        made.append(Audit(session, values))
        return []

    with watching(tmp_path / "run", "sentinel", listeners) as session:
        session.open()
        yield made[0]


def state_tensors(optimizer):
    return [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)
            and t.is_floating_point()]


def all_finite(optimizer):
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    return all(bool(torch.isfinite(t).all()) for t in [*parameters, *state_tensors(optimizer)])


def snapshot(optimizer):
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    tensors = [*parameters, *[p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse],
               *state_tensors(optimizer)]
    return [(t, t.detach().clone(), t._version) for t in tensors]


def ahead(optimizer, grads):
    """What really happens, on a deep copy."""
    twin = copy.deepcopy(optimizer)
    for group, ours in zip(twin.param_groups, optimizer.param_groups, strict=True):
        for p, q in zip(group["params"], ours["params"], strict=True):
            p.grad = None if q.grad is None else q.grad.detach().clone()
    twin.step()
    return all_finite(twin)


PLANTED = {
    # eps is 0 in fp16 and the squares of the gradients are, too: 0/0 or x/0.
    "Adam": dict(dtype=torch.float16, grad=1e-4, twin=dict(eps=1e-4)),
    "AdamW": dict(dtype=torch.float16, grad=1e-4, twin=dict(eps=1e-4)),
    "NAdam": dict(dtype=torch.float16, grad=1e-4, twin=dict(eps=1e-4)),
    "RMSprop": dict(dtype=torch.float16, grad=1e-4, twin=dict(eps=1e-4)),
    "Adagrad": dict(dtype=torch.float16, grad=1e-4, twin=dict(eps=1e-4)),
    "Adamax": dict(dtype=torch.float16, grad=0.0, twin=dict(eps=1e-4)),
    "RAdam": dict(dtype=torch.float16, grad=6e4, twin=dict(), twin_grad=1.0),
    "Adadelta": dict(dtype=torch.float16, grad=0.0, options=dict(eps=1e-9), twin=dict(eps=1e-4)),
    "SGD": dict(dtype=torch.float16, grad=6e4, options=dict(lr=10.0), twin=dict(lr=0.01)),
    "ASGD": dict(dtype=torch.float16, grad=6e4, options=dict(lr=10.0), twin=dict(lr=0.01)),
    "Adafactor": dict(dtype=torch.float32, grad=3e25, twin=dict(), twin_grad=1.0),
    "Muon": dict(dtype=torch.float32, grad=-1.0, options=dict(lr=3e38, weight_decay=0.0), param=3e38,
                 twin=dict(lr=0.1)),
}


def build(name, dtype, options):
    p = torch.nn.Parameter(torch.ones(3, 4, dtype=dtype))
    return getattr(torch.optim, name)([p], **options), p


@pytest.mark.parametrize("name", [n for n in PLANTED if hasattr(torch.optim, n)])
def test_a_planted_bad_update_is_foreseen_and_its_twin_is_not(audit, name):
    case = PLANTED[name]
    for is_twin in (False, True):
        options = {**case.get("options", {}), **(case["twin"] if is_twin else {})}
        optimizer, p = build(name, case["dtype"], options)
        p.data.mul_(case.get("param", 1.0))
        size = case.get("twin_grad", case["grad"]) if is_twin else case["grad"]
        p.grad = torch.full_like(p, size)
        finite = ahead(optimizer, None)
        if not is_twin and finite:
            pytest.fail("the planted bug is none: the real step stays finite")
        before, states = snapshot(optimizer), [len(v) for v in optimizer.state.values()]
        found = audit.foresee(optimizer)
        for t, contents, version in before:  # nothing of the run's is touched
            assert torch.equal(t, contents) and t._version == version
        assert [len(v) for v in optimizer.state.values()] == states
        if is_twin:
            assert finite and found is None
        else:
            assert found is not None and found.paths == ["param_groups.0.0"] and found.text


GRID = {
    "SGD": [dict(lr=0.1), dict(lr=0.1, momentum=0.9), dict(lr=1e3, momentum=0.9, nesterov=True),
            dict(lr=0.1, momentum=0.9, dampening=0.5), dict(lr=0.1, momentum=0.5, maximize=True, foreach=False)],
    "Adam": [dict(), dict(eps=0.0), dict(amsgrad=True), dict(foreach=True, weight_decay=0.1), dict(maximize=True),
             dict(fused=True), dict(fused=True, eps=0.0, amsgrad=True), dict(foreach=False)],
    "AdamW": [dict(), dict(eps=0.0, foreach=True), dict(fused=True), dict(lr=50.0)],
    "NAdam": [dict(), dict(eps=0.0)], "RAdam": [dict(), dict(eps=0.0)],
    "Adamax": [dict(), dict(eps=0.0)],
    "RMSprop": [dict(), dict(eps=0.0), dict(centered=True), dict(momentum=0.9)],
    "Adagrad": [dict(), dict(eps=0.0)], "Adadelta": [dict(), dict(eps=0.0)],
    "ASGD": [dict(), dict(lr=1e3)], "Rprop": [dict()], "Adafactor": [dict()], "Muon": [dict()],
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [n for n in GRID if hasattr(torch.optim, n)])
def test_foresight_agrees_with_what_happens(audit, name, seed):
    draw = random.Random(f"{name} {seed}")
    checked = bad = 0
    for options in GRID[name]:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            torch.manual_seed(draw.randrange(1 << 30))
            p = torch.nn.Parameter(torch.randn(3, 4).to(dtype))
            optimizer = getattr(torch.optim, name)([p], **options)
            for _ in range(4):
                size = 10.0 ** draw.uniform(-12, 4.5 if dtype == torch.float16 else 20)
                p.grad = (torch.randn(3, 4) * size).to(dtype)
                if draw.random() < 0.3:
                    p.grad[0, 0] = 0
                if not bool(torch.isfinite(p.grad).all()) or not all_finite(optimizer):
                    break
                expected = ahead(optimizer, None)
                found = audit.foresee(optimizer)
                assert (found is None) == expected, (options, dtype, size, found)
                checked, bad = checked + 1, bad + (not expected)
                optimizer.step()
    assert checked > 5


def test_a_calm_step_is_decided_without_reading_parameters_or_state(audit, monkeypatch):
    optimizer, p = build("Adam", torch.float32, {})
    p.grad = torch.ones_like(p)
    monkeypatch.setattr(audit, "_look", None)
    monkeypatch.setattr(audit, "_try", None)
    monkeypatch.setattr(audit, "_read", None)
    for _ in range(5):
        assert audit.foresee(optimizer, 1.0) is None
        optimizer.step()


def test_state_that_was_loaded_is_read_once_and_then_known(audit):
    optimizer, p = build("AdamW", torch.float32, {})
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert audit.foresee(optimizer, 1.0) is None
    audit._look = audit._try = None
    assert audit.foresee(optimizer, 1.0) is None


def test_a_poisoned_checkpoint_is_foreseen(audit):
    optimizer, p = build("Adagrad", torch.float32, dict(eps=0.0))
    p.grad = torch.ones_like(p)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["sum"] = torch.full_like(p, -5.0).detach()
    optimizer.load_state_dict(state)
    found = audit.foresee(optimizer)
    assert found is not None and not ahead(optimizer, None)


def test_a_fused_optimizer_under_a_scaler_is_judged_by_its_unscaled_gradient(audit):
    for scale, is_bad in ((None, True), (65536.0, False)):
        p = torch.nn.Parameter(torch.ones(8, dtype=torch.float16))
        optimizer = torch.optim.Adam([p], fused=True)
        p.grad = torch.full_like(p, 3e4)  # its square leaves fp16
        if scale is not None:
            optimizer.grad_scale = torch.tensor(scale)
        assert (audit.foresee(optimizer) is not None) == is_bad


def test_sparse_gradients_are_run_on_copies_where_nothing_proves_them_safe(audit):
    def made(eps):
        p = torch.nn.Parameter(torch.ones(5, 2))
        p.grad = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.zeros(2, 2), (5, 2))
        return torch.optim.SparseAdam([p], eps=eps)

    assert audit.foresee(made(1e-8)) is None
    found = audit.foresee(made(1e-45))
    assert (found is None) == ahead(made(1e-45), None)


def test_lbfgs_and_strangers_are_noted(audit):
    class Mine(torch.optim.SGD):
        pass

    p = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    p.grad = torch.ones_like(p)
    assert audit.foresee(torch.optim.LBFGS([p])) is None
    assert audit.foresee(Mine([p], lr=0.1)) is None
    notes = " ".join(audit.session.notes)
    assert "LBFGS" in notes and "Mine" in notes


def test_a_dry_run_draws_no_random_number_and_calls_no_hook(audit):
    optimizer, p = build("RMSprop", torch.float16, dict(eps=1e-4))
    called = []
    optimizer.register_step_pre_hook(lambda *a: called.append(1))
    p.grad = torch.ones_like(p)
    before = torch.get_rng_state()
    assert audit.foresee(optimizer) is None
    assert torch.equal(before, torch.get_rng_state()) and not called
    assert not audit.session.replaying


@pytest.mark.parametrize("implementation", [dict(foreach=False), dict(foreach=True), dict(fused=True)], ids=str)
def test_the_update_is_shown_op_by_op_and_named(tmp_path, implementation):
    from nanhunt._sentinel.audit_watch import AuditWatch

    def train(folder, eps):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 3)).half()
        optimizer = torch.optim.Adam(net.parameters(), eps=eps, **implementation)
        with watching(folder, "sentinel", lambda s, v: [AuditWatch(s, v)]) as session:
            for _ in range(2):
                x = torch.randn(8, 4).half()
                x[:, 1] = 0  # a column of weights without a gradient: 0/0
                net(x).float().square().mean().mul(1e-4).backward()
                session.loss = 0.5
                optimizer.step()
                optimizer.zero_grad()
        return all(bool(torch.isfinite(p).all()) for p in net.parameters())

    # A fused kernel adds eps in fp32: only 0 harms it.
    assert not train(tmp_path / "bad", 0.0 if implementation.get("fused") else 1e-8)
    report = report_of(tmp_path / "bad")
    assert report["verdict"]["status"] == "fault"
    origin = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert origin["phase"] == "optimizer" and origin["step"] == 0 and origin["module"] in ("0.weight", "0.bias")
    expected = {"foreach": "addcdiv_", "fused": "_fused_adam_"}
    assert origin["op"].endswith(expected["fused" if implementation.get("fused") else "foreach"])
    assert train(tmp_path / "good", 1e-4)
    assert report_of(tmp_path / "good")["findings"] == []  # not clean: nobody looked at anything but the update


def test_weights_are_the_same_bits_with_and_without(tmp_path):
    from nanhunt._sentinel.audit_watch import AuditWatch

    def train():
        torch.manual_seed(1)
        net = torch.nn.Linear(4, 4).half()
        optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01, centered=True, eps=1e-4)
        for _ in range(20):
            net(torch.randn(8, 4).half()).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in net.parameters()]

    plain = train()
    with watching(tmp_path / "run", "sentinel", lambda s, v: [AuditWatch(s, v)]):
        seen = train()
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert math.isfinite(float(plain[0].sum()))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.ASGD, torch.optim.Adadelta])
@pytest.mark.parametrize("rate", ["x", [0.1], torch.tensor([0.1, 0.2]), None, 1j, 1e300, -0.1],
                         ids=lambda rate: type(rate).__name__ + str(rate)[:4])
def test_what_torch_refuses_is_the_programs_own_exception_alone(tmp_path, kind, rate):
    # Given a learning rate that torch may refuse, set in the middle of a run,
    def train():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer, raised = kind(model.parameters(), lr=0.01, foreach=False), []
        for i in range(4):
            if i == 2:
                optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            try:
                optimizer.step()
            except Exception as error:
                raised.append(f"{type(error).__name__}: {error}")
        return raised

    alone = train()
    # then the program sees what it would see alone, and there is no error of ours.
    with nanhunt.watch(out=tmp_path / "run", budget=0, quiet=True) as watch:
        assert train() == alone
    report = json.loads(watch.report("json"))
    assert not [line for line in report["coverage"]["unwatched"] if "errors inside" in line], report["coverage"]
