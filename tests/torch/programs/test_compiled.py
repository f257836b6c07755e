# SPDX-License-Identifier: Apache-2.0
"""A graph that torch.compile made is heard as one op. One that came out of a cache is told as that, with its line."""

from __future__ import annotations

import pytest
import torch
from compiled_programs import VERSION
from own_programs import LEVELS, Net, assert_silent, data, told
from torch import nn
from torch.nn import functional as F

BAD = 3


@pytest.fixture
def fresh_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()


class Exponential(Net):
    def forward(self, x):
        return self.last(self.first(x).exp())


class Root(Net):
    """Its derivative is infinite at 0."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8, bias=False)

    def forward(self, x):
        return self.last(self.first(x).abs().sqrt())


def training(make, compile_all=True, bad=(BAD,), spoil=lambda x: x * 1e3):
    def build():
        torch.manual_seed(0)
        net = make()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        model = torch.compile(net) if compile_all else net

        def step(i):
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(model(spoil(x) if i in bad else x), y).backward()
            opt.step()

        return step, net, opt

    return build


def zeros(x):
    return torch.zeros_like(x)


CACHED = {
    "forward": (training(Exponential), "aten::exp", "forward"),
    "backward": (training(Root, spoil=zeros), "aten::div", "backward"),
}
cached_by_default = pytest.mark.skipif(VERSION < (2, 6), reason="before PyTorch 2.6 no graph is cached by default")


@cached_by_default
@pytest.mark.parametrize("fault", CACHED)
def test_a_graph_that_an_earlier_run_left_in_the_cache_is_named_inside_all_the_same(fault, tmp_path, fresh_caches):
    planted, op, phase = CACHED[fault]
    told(training(Exponential if fault == "forward" else Root, bad=()), tmp_path / "first", "steps")  # fills the cache
    torch.compiler.reset()
    said = told(planted, tmp_path / "run", "live")
    assert (said.first["op"], said.first["phase"]) == (op, phase), said.show()
    assert said.first["step"] == BAD and "test_compiled.py" in said.first["call_site"], said.show()
    assert torch._functorch.config.enable_autograd_cache, "what the program compiles later comes out of it again"


@cached_by_default
@pytest.mark.parametrize("fault", CACHED)
def test_a_cache_that_the_environment_asks_for_is_used_and_its_graph_told_as_a_whole(
    fault, tmp_path, fresh_caches, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")
    planted, _, phase = CACHED[fault]
    told(training(Exponential if fault == "forward" else Root, bad=()), tmp_path / "first", "steps")  # fills the cache
    torch.compiler.reset()
    said = told(planted, tmp_path / "run", "live")
    assert said.first["op"] == "compiled_graph" and said.first["step"] == BAD, said.show()
    assert phase == said.first["phase"] and "test_compiled.py" in said.first["call_site"], said.show()
    assert "Inside compiled code" in said.first["title"] and len(said.loud) == 1, said.show()
    assert [a["id"] for a in said.first["advice"]] == ["compile-cache-off", "compile-off"], said.show()


class Masked(nn.Module):
    """Attention with a causal mask and padding; it gives infinities that are meant."""

    def __init__(self):
        super().__init__()
        self.all, self.out = nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x, pad):
        q, k, v = self.all(x).chunk(3, -1)
        causal = torch.full((x.shape[1],) * 2, float("-inf")).triu(1)
        a = (q @ k.transpose(-1, -2) + causal).masked_fill(pad[:, None, :], float("-inf")).softmax(-1)
        return self.out(torch.nan_to_num(a) @ v), torch.log(pad.float())


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_compiler_itself_computes_is_nothing_of_the_program(level, tmp_path):
    def build():
        torch.manual_seed(0)
        net = Masked()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        fast = torch.compile(net)
        pad = torch.zeros(4, 6, dtype=torch.bool)
        pad[0], pad[1, 4:] = True, True

        def step(i):
            x = torch.randn(4, 6, 8)
            out, _ = fast(x, pad)
            out.pow(2).mean().backward()
            opt.step()
            opt.zero_grad()
            with torch.no_grad():
                fast(x, pad)

        return step, net, opt

    assert_silent(build, tmp_path, level)
