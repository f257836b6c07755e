# SPDX-License-Identifier: Apache-2.0
"""The value graph agrees with an oracle that keeps every storage alive, so that an address is a name."""
from __future__ import annotations

import pytest
import torch
from listening import needs_python_heard
from op_rows import watched_ops
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Oracle(TorchDispatchMode):
    """Runs above the watch, as a mode of the user's, and looks at the rows that each op leaves."""

    def __init__(self, watched):
        super().__init__()
        self.watched = watched
        self.alive, self.writes, self.names = [], {}, {}
        self.checked = 0

    def keep(self, tensors):
        for t in tensors:
            storage = t.untyped_storage()
            self.alive.append(storage)
            self.writes.setdefault(storage.data_ptr(), 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = list(zip(func._schema.arguments, args, strict=False))
        given += [(a, kwargs[a.name]) for a in func._schema.arguments if a.name in kwargs]
        read, written = [], []
        for argument, value in given:
            for t in tensors_of(value):
                read.append(t)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written.append(t.untyped_storage().data_ptr())
        self.keep(read)
        before = {t.untyped_storage().data_ptr(): self.writes[t.untyped_storage().data_ptr()] for t in read}
        first = len(self.watched.ops)
        result = func(*args, **kwargs)
        self.keep(tensors_of(result))
        for address in set(written):
            self.writes[address] += 1
        for op in self.watched.ops[first:]:
            for use in op.inputs:
                self.check(use, before)
            for use in op.outputs:
                self.check(use, self.writes)
        return result

    def check(self, use, versions):
        if not use.data or use.role == "overwritten":
            return
        size = {0: 2, 1: 2, 2: 4, 3: 8, 6: 8, 7: 4, 8: 1, 9: 1}[use.layout[0]]
        address = use.data - use.offset * size
        assert self.names.setdefault(address, use.contents[0]) == use.contents[0], "one storage, two names"
        assert address in versions
        assert use.contents[1] == versions[address], "another version"
        self.checked += 1


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors_of(item)]
    return []


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
        h = torch.relu_(self.first(h)) * 1
        h[:, 0] += 1
        h[:, 1:3].mul_(0.5)
        return self.last(h.mean(1))


@needs_python_heard
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_every_row_names_the_contents_that_the_oracle_knows(optimizer):
    model = Mixed()
    chosen = (torch.optim.AdamW(model.parameters(), foreach=True) if optimizer == "adamw"
              else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False))
    with watched_ops() as watched, watched.mode(), Oracle(watched) as oracle:
        for _ in range(3):
            x = torch.randn(2, 5, 8)
            chosen.zero_grad()
            nn.functional.cross_entropy(model(x), torch.zeros(2, dtype=torch.long)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
    assert oracle.checked > 1000
