# SPDX-License-Identifier: Apache-2.0
"""Tables of which a step writes a few rows: those are read, and what goes bad in one of them is found at once."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, assert_silent, told
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH, BAD = 8000, 16, 4


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.users = nn.Linear(6, WIDTH)
        self.register_buffer("seen", torch.full((ROWS, WIDTH), 1e38))
        with torch.no_grad():
            self.items.weight[ROWS - 1].zero_()

    def forward(self, u, i):
        a, b = self.users(u), self.items(i)
        return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


@torch.no_grad()
def count_by_index_add(net, i, amount):
    net.seen.index_add_(0, i, torch.full((len(i), WIDTH), amount))


@torch.no_grad()
def count_by_index_put(net, i, amount):
    net.seen.index_put_((i - ROWS,), torch.full((len(i), WIDTH), amount), accumulate=True)  # rows from the end


@torch.no_grad()
def count_by_index_copy(net, i, amount):
    net.seen.index_copy_(0, i, torch.full((len(i), WIDTH), 3.0) * amount)


@torch.no_grad()
def count_by_scatter_add(net, i, amount):
    net.seen.scatter_add_(0, i[:, None].expand(-1, WIDTH), torch.full((len(i), WIDTH), amount))


COUNTS = [count_by_index_add, count_by_index_put, count_by_index_copy, count_by_scatter_add]


def training(zero_row=None, count=None, bad=None):
    """In step `zero_row` a row of zeros is looked up, in step `bad` rows of a buffer pass what fp32 holds."""

    def build():
        torch.manual_seed(0)
        net = Table()
        sparse = torch.optim.SparseAdam([net.items.weight], lr=1e-2)
        dense = torch.optim.Adam(net.users.parameters(), lr=1e-3)

        def step(n):
            i = torch.randint(0, ROWS - 1, (32,)).unique()
            if n == zero_row:
                i[3] = ROWS - 1
            out = net(torch.randn(len(i), 6), i)
            F.binary_cross_entropy_with_logits(out, torch.ones(len(i))).backward()
            sparse.step()
            dense.step()
            sparse.zero_grad()
            dense.zero_grad()
            if count is not None:
                count(net, i, 3e38 if n == bad else 1.0)

        return step, net, sparse, dense

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_of_zeros_in_a_sparse_table_is_found_where_its_norm_divides(level, tmp_path):
    said = told(training(zero_row=BAD), tmp_path, level, steps=8)
    assert said.what[:3] == ("divide_by_zero", "aten::div", "forward") and said.first["step"] == BAD, said.show()
    assert_silent(training(), tmp_path, level, steps=8)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", COUNTS)
def test_rows_that_are_written_are_read_however_few_they_are(count, level, tmp_path):
    said = told(training(count=count, bad=BAD), tmp_path, level, steps=8)
    assert said.run.report["verdict"]["status"] != "clean", said.show()
    assert said.first["call_site"].startswith("test_large_tables.py"), said.show()
    assert_silent(training(count=count), tmp_path, level, steps=8)


def test_where_no_operation_is_heard_a_table_is_read_as_a_whole(tmp_path):
    def build(bad=BAD):
        torch.manual_seed(0)
        table = nn.Embedding(ROWS, WIDTH, sparse=True)
        sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-2)

        def step(n):
            if n == bad:
                table.weight.data.numpy()[7, 3] = float("nan")
            table(torch.randint(100, ROWS, (32,))).pow(2).mean().backward()
            sparse.step()
            sparse.zero_grad()

        return step, table, sparse

    assert told(build, tmp_path / "bad", "steps", steps=8).status == "fault"
    assert_silent(lambda: build(None), tmp_path / "twin", "steps", steps=8)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("at", [7, 30])
def test_what_is_written_past_pytorch_into_a_table_is_no_fault_of_what_reads_it(at, level, tmp_path):
    def build(bad=at):
        torch.manual_seed(0)
        table = nn.Embedding(ROWS, WIDTH, sparse=True)
        sparse = torch.optim.SparseAdam(table.parameters(), lr=1e-2)

        def step(n):
            i = torch.randint(100, ROWS, (32,)).unique()
            if n == bad:
                table.weight.data.numpy()[int(i[3]), 3] = float("nan")
            table(i).pow(2).mean().backward()
            sparse.step()
            sparse.zero_grad()

        return step, table, sparse

    said = told(build, tmp_path / "bad", level, steps=at + 2)
    assert said.status == "fault" and said.what[0] == "corruption" and said.first["step"] == at, said.show()
    assert_silent(lambda: build(None), tmp_path / "twin", level, steps=at + 2)
