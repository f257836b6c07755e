# SPDX-License-Identifier: Apache-2.0
"""The device of device/ is what the tests on it take it for."""
from __future__ import annotations

import ctypes
import os
import signal

import torch
from on_device import on_device
from torch import nn
from torch.nn import functional as F


@on_device
def test_host_code_that_touches_its_memory_dies():
    t = torch.ones(4, device="walled")
    child = os.fork()
    if child == 0:
        ctypes.memset(t.data_ptr(), 0, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert t.sum().item() == 4


@on_device
def test_memory_that_nothing_has_written_is_nan():
    assert torch.empty(5, device="walled").isnan().all().item()
    freed = torch.ones(5, device="walled").data_ptr()
    again = torch.empty(5, device="walled")
    assert again.data_ptr() == freed, "memory is handed out again"
    assert again.isnan().all().item()


@on_device
def test_training_on_it_gives_the_bits_of_the_cpu():
    def train(device, **options):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for _ in range(3):
            x, y = torch.randn(8, 1, 6, 6).to(device), torch.randint(0, 5, (8,)).to(device)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [t.cpu() for t in model.state_dict().values()]

    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        assert all(torch.equal(a, b) for a, b in zip(train("walled", **options), train("cpu", **options), strict=True))


@on_device
def test_random_numbers_come_from_a_generator_of_its_own():
    torch.manual_seed(3)
    before, on_host = torch.walled.get_rng_state(), torch.get_rng_state()
    first = torch.rand(4, device="walled").cpu()
    assert torch.equal(torch.get_rng_state(), on_host)
    torch.walled.set_rng_state(before)
    assert torch.equal(torch.rand(4, device="walled").cpu(), first)
    own = torch.Generator("walled").manual_seed(3)
    assert torch.equal(torch.rand(4, device="walled", generator=own).cpu(), first)


@on_device
def test_waiting_for_it_is_counted():
    import walled

    t = torch.ones(3, device="walled")

    def waits(act):
        before = walled.waits()
        act()
        return walled.waits() - before

    assert waits(lambda: t.cpu()) == 1
    assert waits(lambda: t.sum().item()) == 1
    assert waits(lambda: torch.equal(t, t)) == 1
    assert waits(lambda: t.nonzero()) == 1
    assert waits(torch.walled.synchronize) == 1
    assert waits(lambda: (t * 2 + t).sum()) == 0
    assert waits(lambda: torch.ones(3, pin_memory=True).to("walled", non_blocking=True)) == 0


@on_device
def test_copies_into_pinned_memory_arrive_late():
    import walled

    walled.set_lag(2)
    try:
        t, to = torch.ones(3, device="walled"), torch.zeros(3, pin_memory=True)
        before = walled.waits()
        to.copy_(t, non_blocking=True)
        t.zero_()
        event = torch.Event("walled")
        event.record()
        assert [event.query(), event.query()] == [False, False]
        assert to.tolist() == [0, 0, 0]
        assert event.query()
        assert to.tolist() == [1, 1, 1]
        assert walled.waits() == before
        event.record()
        event.synchronize()
        assert walled.waits() == before + 1
    finally:
        walled.set_lag(0)


@on_device
def test_its_tensors_do_not_mix_with_the_hosts():
    t = torch.ones(3, device="walled")
    assert (t * torch.tensor(2.0)).sum().item() == 6
    for mix in (lambda: t + torch.ones(3), lambda: F.linear(torch.ones(2, 3), t.view(1, 3))):
        try:
            mix()
        except RuntimeError as error:
            assert "same device" in str(error)
        else:
            raise AssertionError("a mixture ran")


@on_device
def test_backward_runs_in_a_thread_of_the_device():
    import threading

    seen = []
    t = torch.ones(3, device="walled", requires_grad=True)
    y = t * 2
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    y.sum().backward()
    assert seen and seen[0] != threading.get_ident()


@on_device
def test_autocast_and_the_loss_scaler_know_it():
    a = torch.ones(2, 2, device="walled", requires_grad=True)
    with torch.autocast("walled", dtype=torch.float16):
        assert (a @ a).dtype == torch.float16
        assert (a @ a).softmax(1).dtype == torch.float32
        assert torch.cat([a @ a, a]).dtype == torch.float32
    optimizer = torch.optim.SGD([a], lr=1.0)
    scaler = torch.amp.GradScaler("walled", init_scale=4.0)
    scaler.scale(a.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert a.detach().cpu().tolist() == [[1, 1], [1, 1]]
