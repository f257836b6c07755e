# SPDX-License-Identifier: Apache-2.0
"""Kinds of state that a model may keep where nobody looks for it. Each is drawn on in forward and changed by it, so a
forward more or less is seen in the state, and in the weights that come of it."""
from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import itertools
import os
import random
import tempfile
import threading
import weakref

import numpy as np
import torch
from torch import nn

COUNT = 0
HISTORY: list[float] = []
AVERAGE = torch.zeros(6)
GENERATOR = np.random.default_rng(3)
DRAWS = random.Random(3)
TORCH_GENERATOR = torch.Generator()
LOCAL = threading.local()
CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("calls", default=0)


class Kind(nn.Module):
    """What `change` returns is added to the input. `state` says what is kept, in numbers and strings."""

    counter = 0  # of a class

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.begin()

    def begin(self):
        """..."""

    def change(self, x):
        raise NotImplementedError

    def state(self):
        raise NotImplementedError

    def forward(self, x):
        return torch.sqrt(40 - self.layers(x + 0.01 * self.change(x)) * x[:, :1])


class Global(Kind):
    def begin(self):
        globals()["COUNT"] = 0

    def change(self, x):
        globals()["COUNT"] += 1
        return COUNT % 5

    def state(self):
        return COUNT


class ClassAttribute(Kind):
    def begin(self):
        ClassAttribute.counter = 0

    def change(self, x):
        ClassAttribute.counter += 1
        return ClassAttribute.counter % 5

    def state(self):
        return ClassAttribute.counter


class GlobalList(Kind):
    def begin(self):
        HISTORY.clear()

    def change(self, x):
        HISTORY.append(float(x.mean()))
        return len(HISTORY) % 5

    def state(self):
        return list(HISTORY)


class GlobalTensor(Kind):
    def begin(self):
        AVERAGE.zero_()

    def change(self, x):
        AVERAGE.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return AVERAGE

    def state(self):
        return AVERAGE.tolist()


class Helper:
    def __init__(self):
        self.calls, self.seen = 0, []

    def __call__(self):
        self.calls += 1
        self.seen.append(self.calls)
        return self.calls % 5


class HelperObject(Kind):
    def begin(self):
        self.helper = Helper()

    def change(self, x):
        return self.helper()

    def state(self):
        return self.helper.calls, self.helper.seen


class HelperInside(Kind):
    """Four deep."""

    def begin(self):
        self.helpers = {"a": [[[{"b": Helper()}]]]}

    def change(self, x):
        return self.helpers["a"][0][0][0]["b"]()

    def state(self):
        return self.helpers["a"][0][0][0]["b"].seen


class NumpyArray(Kind):
    def begin(self):
        self.array = np.zeros(6, dtype=np.float32)

    def change(self, x):
        self.array *= 0.9
        self.array += x.detach().mean(0).numpy()
        return torch.from_numpy(self.array.copy())

    def state(self):
        return self.array.tolist()


class SharedWithNumpy(Kind):
    def begin(self):
        self.array = np.zeros(6, dtype=np.float32)
        self.view = torch.from_numpy(self.array)

    def change(self, x):
        self.array += 1
        return self.view.remainder(5.0)

    def state(self):
        return self.view.tolist()


class NumpyGenerator(Kind):
    def begin(self):
        globals()["GENERATOR"] = np.random.default_rng(3)

    def change(self, x):
        return float(GENERATOR.random())

    def state(self):
        return str(GENERATOR.bit_generator.state)


class NumpyGlobal(Kind):
    def change(self, x):
        return float(np.random.rand())

    def state(self):
        return np.random.get_state()[1].tolist(), np.random.get_state()[2]


class PythonRandom(Kind):
    def change(self, x):
        return random.random()

    def state(self):
        return random.getstate()


class OwnRandom(Kind):
    def begin(self):
        DRAWS.seed(3)

    def change(self, x):
        return DRAWS.random()

    def state(self):
        return DRAWS.getstate()


class TorchGenerator(Kind):
    def begin(self):
        TORCH_GENERATOR.manual_seed(3)

    def change(self, x):
        return torch.rand(6, generator=TORCH_GENERATOR)

    def state(self):
        return TORCH_GENERATOR.get_state().tolist()


class Closure(Kind):
    def begin(self):
        calls = 0

        def count():
            nonlocal calls
            calls += 1
            return calls

        self.count, self.look = count, lambda: calls

    def change(self, x):
        return self.count() % 5

    def state(self):
        return self.look()


class Iterator(Kind):
    def begin(self):
        self.numbers = iter(range(1000))

    def change(self, x):
        return next(self.numbers) % 5

    def state(self):
        return self.numbers.__reduce__()[2]


class Generator(Kind):
    def begin(self):
        self.sent = []

        def numbers():
            for i in itertools.count():
                self.sent.append(i)
                yield i

        self.numbers = numbers()

    def change(self, x):
        return next(self.numbers) % 5

    def state(self):
        return self.sent


class Counter(Kind):
    def begin(self):
        self.numbers = itertools.count()

    def change(self, x):
        return next(self.numbers) % 5

    def state(self):
        return repr(self.numbers)


class FilePosition(Kind):
    def begin(self):
        self.file = tempfile.TemporaryFile()
        self.file.write(bytes(range(200)))
        self.file.seek(0)
        self.unbuffered = os.fdopen(os.dup(self.file.fileno()), "rb", buffering=0, closefd=False)

    def change(self, x):
        return self.unbuffered.read(1)[0] % 5

    def state(self):
        return self.unbuffered.tell()


class WrittenFile(Kind):
    def begin(self):
        self.file = tempfile.NamedTemporaryFile("w", buffering=1)

    def change(self, x):
        self.file.write("called\n")
        return 1

    def state(self):
        with open(self.file.name) as file:  # noqa: PTH123
            return file.read()


class Pipe(Kind):
    """What another process or thread sends."""

    def begin(self):
        self.ends = os.pipe()
        os.write(self.ends[1], bytes(range(200)))

    def change(self, x):
        return os.read(self.ends[0], 1)[0] % 5

    def state(self):
        left = os.read(self.ends[0], 200)
        return len(left)


class Deque(Kind):
    def begin(self):
        self.last = collections.deque([0.0], maxlen=4)

    def change(self, x):
        self.last.append(float(x.mean()))
        return sum(self.last)

    def state(self):
        return list(self.last)


class DefaultDict(Kind):
    def begin(self):
        self.counts = collections.defaultdict(lambda: [0])

    def change(self, x):
        self.counts[x.shape][0] += 1
        return self.counts[x.shape][0] % 5

    def state(self):
        return sorted(self.counts.values())


@dataclasses.dataclass
class Record:
    calls: int = 0
    mean: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(6))


class Dataclass(Kind):
    def begin(self):
        self.record = Record()

    def change(self, x):
        self.record.calls += 1
        self.record.mean += x.detach().mean(0)
        return self.record.mean / self.record.calls

    def state(self):
        return self.record.calls, self.record.mean.tolist()


class Slots:
    __slots__ = ("calls",)


class WithSlots(Kind):
    def begin(self):
        self.slots = Slots()
        self.slots.calls = 0

    def change(self, x):
        self.slots.calls += 1
        return self.slots.calls % 5

    def state(self):
        return self.slots.calls


class Weak(Kind):
    def begin(self):
        self.kept = [Helper()]
        self.weak = weakref.WeakKeyDictionary({self.kept[0]: 0})

    def change(self, x):
        self.weak[self.kept[0]] += 1
        return self.weak[self.kept[0]] % 5

    def state(self):
        return list(self.weak.values())


class ThreadLocal(Kind):
    def begin(self):
        LOCAL.calls = 0

    def change(self, x):
        LOCAL.calls += 1
        return LOCAL.calls % 5

    def state(self):
        return LOCAL.calls


class ContextVariable(Kind):
    def begin(self):
        CONTEXT.set(0)

    def change(self, x):
        CONTEXT.set(CONTEXT.get() + 1)
        return CONTEXT.get() % 5

    def state(self):
        return CONTEXT.get()


class NoBuffer(Kind):
    """A tensor that hangs on the module and is no buffer."""

    def begin(self):
        self.mean = torch.zeros(6)

    def change(self, x):
        self.mean += 0.1 * x.detach().mean(0)
        return self.mean

    def state(self):
        return self.mean.tolist()


class ThroughData(Kind):
    """A buffer that is written past torch's count of writes."""

    def begin(self):
        self.register_buffer("mean", torch.zeros(6))

    def change(self, x):
        self.mean.data.numpy()[:] += 1
        return self.mean.remainder(5.0)

    def state(self):
        return self.mean.tolist()


class MovingAverage(Kind):
    """Of the weights, as a copy of the model that is not part of it."""

    def begin(self):
        self.copies = [[p.detach().clone() for p in self.layers.parameters()]]

    def change(self, x):
        for mine, p in zip(self.copies[0], self.layers.parameters(), strict=False):
            mine.mul_(0.9).add_(p.detach(), alpha=0.1)
        return self.copies[0][1][:6]

    def state(self):
        return [t.tolist() for t in self.copies[0]]


class StatefulHook(Kind):
    def begin(self):
        self.calls = calls = [0]

        def hook(module, args, output):
            calls[0] += 1
            return output * (1 + 0.01 * (calls[0] % 5))

        self.layers.register_forward_hook(hook)

    def change(self, x):
        return 0

    def state(self):
        return self.calls


class HookOfAGradient(Kind):
    def begin(self):
        self.helper = helper = Helper()
        self.layers[0].weight.register_hook(lambda g: g * (1 + 0.01 * helper()))

    def change(self, x):
        return 0

    def state(self):
        return self.helper.seen


class LruCache(Kind):
    def begin(self):
        calls = self.calls = [0]

        @functools.lru_cache(maxsize=2)
        def cached(key):
            calls[0] += 1
            return calls[0]

        self.cached = cached

    def change(self, x):
        return self.cached(int(x.nan_to_num().sum() * 100)) % 5

    def state(self):
        return self.calls, str(self.cached.cache_info())


class Cache(Kind):
    """Of its own results, under what went in."""

    def begin(self):
        self.cache = {}

    def change(self, x):
        key = x.detach().numpy().tobytes()
        return self.cache.setdefault(key, len(self.cache)) % 5

    def state(self):
        return len(self.cache), sorted(self.cache.values())


class Environment(Kind):
    def begin(self):
        os.environ["CALLS_OF_A_MODEL"] = "0"

    def change(self, x):
        os.environ["CALLS_OF_A_MODEL"] = str(int(os.environ["CALLS_OF_A_MODEL"]) + 1)
        return int(os.environ["CALLS_OF_A_MODEL"]) % 5

    def state(self):
        return os.environ["CALLS_OF_A_MODEL"]


class SharedMemory(Kind):
    """That other processes see as well."""

    def begin(self):
        self.shared = [torch.zeros(6).share_memory_()]

    def change(self, x):
        self.shared[0].numpy()[:] += 1
        return self.shared[0].remainder(5.0)

    def state(self):
        return self.shared[0].tolist()


class MappedFile(Kind):
    def begin(self):
        self.file = tempfile.NamedTemporaryFile()
        self.map = [np.memmap(self.file.name, dtype=np.float32, mode="w+", shape=(6,))]

    def change(self, x):
        self.map[0] += 1
        return float(self.map[0][0]) % 5

    def state(self):
        return self.map[0].tolist()


class FunctionAttribute(Kind):
    def begin(self):
        FunctionAttribute.change.calls = 0

    def change(self, x):
        FunctionAttribute.change.calls += 1
        return FunctionAttribute.change.calls % 5

    def state(self):
        return FunctionAttribute.change.calls


class Switch(Kind):
    """A flag of the process: each call turns it over."""

    def begin(self):
        np.seterr(over="warn")

    def change(self, x):
        np.seterr(over="ignore" if np.geterr()["over"] == "warn" else "warn")
        return 1 if np.geterr()["over"] == "warn" else 2

    def state(self):
        return np.geterr()["over"]


KINDS = [Global, ClassAttribute, GlobalList, GlobalTensor, HelperObject, HelperInside, NumpyArray, SharedWithNumpy,
         NumpyGenerator, NumpyGlobal, PythonRandom, OwnRandom, TorchGenerator, Closure, Iterator, Generator, Counter,
         FilePosition, WrittenFile, Pipe, Deque, DefaultDict, Dataclass, WithSlots, Weak, ThreadLocal, ContextVariable,
         NoBuffer, ThroughData, MovingAverage, StatefulHook, HookOfAGradient, LruCache, Cache, Environment,
         SharedMemory, MappedFile, FunctionAttribute, Switch]
