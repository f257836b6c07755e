# SPDX-License-Identifier: Apache-2.0
"""Pickles that would run something, and mutated files: an exit status, never a signal, and nothing is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_runs import ROOT, check, nanhunt, tensors, trained

SCHEMA = json.loads((ROOT / "reports" / "schema" / "nanhunt.checkpoint.schema.json").read_text())
SPACE = 2 << 30  # bytes of address space
CAN_BE = {0, 1, 3, 4, 5}


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


def zipped(path: Path, data: bytes, storages: dict[str, bytes] | None = None, method=zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x/data.pkl", data)
        for key, content in (storages or {}).items():
            archive.writestr(f"x/data/{key}", content)
    return path


class Runs:
    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_runs_none_and_is_named(tmp_path, protocol):
    made = tmp_path / "made"
    data = pickle.dumps({"w": Runs(f"touch {made}")}, protocol=protocol)
    status, answer = check(zipped(tmp_path / "x.pt", data))
    assert not made.exists()
    assert status == 5
    assert "posix.system" in answer["notes"][0]["text"]
    assert "not run" in answer["notes"][0]["text"]
    pickle.loads(data)  # it would have
    assert made.exists()


def describe(size, stride, offset=0, numel=4) -> bytes:
    """The pickle of one fp32 tensor over a storage of `numel` elements, whatever its description says."""
    out = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", torch.FloatStorage, "0", "cpu", numel) if obj == "the storage" else None

    class Tensor:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, ("the storage", offset, size, stride, False, {})

    Pickler(out, protocol=2).dump({"w": Tensor()})
    return out.getvalue()


@pytest.mark.parametrize(
    "size, stride, offset, expected",
    [
        ((4,), (1,), 0, 0),
        ((2, 2), (1, 2), 0, 0),
        ((5,), (1,), 0, 4),  # beyond its storage
        ((4,), (1,), 1, 4),
        ((4,), (-1,), 3, 4),
        ((-4,), (1,), 0, 4),
        ((4,), (1,), -1, 4),
        ((2, 2), (1,), 0, 4),
        ((1 << 62,), (1,), 0, 4),
        ((1 << 62, 1 << 62), (1, 1), 0, 4),
        ((4,), (1 << 62,), 0, 4),
        ((4,), (1,), 1 << 62, 4),
        ((1 << 70,), (1,), 0, 4),
        ((1 << 39,), (0,), 0, 0),  # one element, so often
        ((2, 3), (1, 1), 0, 5),  # elements that share bytes
    ],
)
def test_a_view_is_read_only_within_its_storage(tmp_path, size, stride, offset, expected):
    path = zipped(tmp_path / "x.pt", describe(size, stride, offset), {"0": struct.pack("<4f", 1, 2, 3, 4)})
    done = nanhunt("check", path, preexec_fn=bounded)
    assert done.returncode == expected, done.stdout + done.stderr


def test_a_compressed_storage_is_named_and_not_read(tmp_path):
    path = zipped(tmp_path / "x.pt", describe((4,), (1,)), {"0": bytes(16)})
    assert nanhunt("check", path).returncode == 0
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", describe((4,), (1,)))
        archive.writestr("x/data/0", bytes(16), compress_type=zipfile.ZIP_DEFLATED)
    status, answer = check(path)
    assert status == 5
    assert tensors(answer)["w"]["problem"] == "it is compressed"


HOSTILE = {
    "nothing": b"",
    "no end": b"\x80\x02" + b"]" * 1000,
    "deep lists": b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 500_000 + b".",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "a dict that holds itself": b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
    "shared and shared again": b"\x80\x02]q\x00"
    + b"".join(b"]q" + bytes([i]) + (b"h" + bytes([i - 1]) + b"a") * 9 for i in range(1, 60))
    + b".",
    "a string of 8 EiB": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "a string of 4 GiB": b"\x80\x02X\xff\xff\xff\xff.",
    "a memo that is not there": b"\x80\x02h\x07.",
    "a memo far away": b"\x80\x02]r\xff\xff\xff\xff.",
    "marks alone": b"\x80\x02" + b"(" * 1_000_000 + b".",
    "pops of nothing": b"\x80\x020000.",
    "an odd dict": b"\x80\x02(K\x01d.",
    "items for a number": b"\x80\x02K\x01(K\x02e.",
    "a global of numbers": b"\x80\x04K\x01K\x02\x93.",
    "an unknown opcode": b"\x80\x02\xff.",
    "sets by the million": b"\x80\x02cbuiltins\nset\nq\x00]("
    + b"K\x01" * 20000
    + b"eq\x01"
    + b"h\x00h\x01\x85R" * 20000
    + b".",
    "values by the million": b"\x80\x02(" + b"]" * 5_000_000 + b"l.",
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_pickle_ends_in_a_status_within_bounds(tmp_path, what):
    done = nanhunt("check", zipped(tmp_path / "x.pt", HOSTILE[what]), preexec_fn=bounded)
    assert done.returncode in {3, 5}, done.stdout + done.stderr


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


def put(slot: int) -> bytes:
    """Remembers what is on top of the stack, and takes it off."""
    return b"r" + struct.pack("<I", slot) + b"0"


def get(slot: int) -> bytes:
    return b"j" + struct.pack("<I", slot)


def arrays_of_one_text(length: int, count: int) -> bytes:
    """Arrays that share a text which fails to be decoded at its end."""
    made = b"\x80\x02" + text(b"a" * length + "€".encode()) + text(b"latin1") + b"\x86" + put(0)
    made += b"c_codecs\nencode\n" + put(1) + b"cnumpy\ndtype\n" + text(b"f4") + b"\x85R" + put(2)
    made += b"cnumpy._core.multiarray\n_reconstruct\n" + put(3) + b")" + put(4) + b"K\x04\x85" + put(5)
    one = get(3) + get(4) + b"R(" + get(5) + get(2) + b"\x89" + get(1) + get(0) + b"Rtb"
    return made + b"](" + one * count + b"e."


def calls_of_one_tuple(function: bytes, length: int = 500_000, count: int = 200_000) -> bytes:
    """Calls that share arguments: a long tuple, whose second item is as long."""
    made = b"\x80\x02(" + b"N" * length + b"t" + put(0) + b"(N" + get(0) + b"N" * length + b"t" + put(1)
    return made + b"c" + function + put(2) + b"](" + (get(2) + get(1) + b"R") * count + b"e."


def one_object_of_long_state(length: int, count: int) -> bytes:
    """An object with many states of no use, in many places."""
    made = b"\x80\x02K\x01K\x02\x86" + put(0) + b"cx\nY\n)R" + (get(0) + b"b") * length + put(1)
    return made + b"](" + get(1) * count + b"e."


def keys_of_one_text(length: int, count: int) -> bytes:
    made = b"\x80\x02" + text(b"k" * length) + put(0) + b"}("
    return made + (get(0) + b"K\x01") * count + b"u."


SHARED = {
    "arrays of one text": lambda: arrays_of_one_text(1_000_000, 60_000),
    "calls of one tuple": lambda: calls_of_one_tuple(b"torch._utils\n_rebuild_foo\n"),
    "sparse tensors of one tuple": lambda: calls_of_one_tuple(b"torch._utils\n_rebuild_sparse_tensor\n"),
    "typed tensors of one tuple": lambda: calls_of_one_tuple(b"torch._tensor\n_rebuild_from_type_v2\n"),
    "one object of a long state": lambda: one_object_of_long_state(300_000, 500_000),
    "keys of one text": lambda: keys_of_one_text(2_000_000, 300_000),
}


def briefly() -> None:
    bounded()
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))


@pytest.mark.parametrize("what", SHARED)
def test_what_many_values_share_is_walked_a_bounded_number_of_times(tmp_path, what):
    done = nanhunt("check", zipped(tmp_path / "x.pt", SHARED[what]()), preexec_fn=briefly)
    assert done.returncode in {0, 3, 4, 5}, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("length, count, all_named", [(1000, 400_000, False), (10, 20_000, True)])
def test_memory_is_bounded_where_a_long_name_is_over_many_tensors(tmp_path, length, count, all_named):
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 28, 3 << 28))

    data = b"\x80\x02" + b"N0" * 100_000 + b"ctorch._utils\n_rebuild_foo\n)R" + put(0)
    data += b"}" + text(b"k" * length) + b"](" + get(0) * count + b"es."
    done = nanhunt("check", zipped(tmp_path / "x.pt", data), preexec_fn=little)
    assert done.returncode == 5, done.stderr
    assert ("in too many places" in done.stdout) == (not all_named)


def test_parts_of_a_distributed_checkpoint_that_share_a_long_state_are_bounded(tmp_path):
    states = b"\x80\x02" + text(b"zzz") + put(0) + b"}(" + (get(0) + b"N") * 200_000 + b"u" + put(1)
    states += b"(" + text(b"fqn") + text(b"a") + text(b"offset") + b"Nd" + put(2)
    states += b"ca\nIndex\n)R" + get(2) + b"b" + put(3)
    states += b"(" + text(b"relative_path") + text(b"f") + text(b"offset") + b"K\x00" + text(b"length") + b"K\x00d"
    states += put(4) + b"ca\nInfo\n)R" + get(1) + b"b" + get(4) + b"b" + put(5)
    parts = b"ca\nMeta\n)R(" + text(b"storage_data") + b"}(" + (get(3) + get(5)) * 200_000 + b"u"
    parts += text(b"state_dict_metadata") + b"}db."
    (tmp_path / ".metadata").write_bytes(states + parts)
    done = nanhunt("check", tmp_path, preexec_fn=briefly)
    assert done.returncode in {3, 4}, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("length", [0, 1, 1 << 20, 1 << 62, (1 << 64) - 1, (1 << 64) - 8])
def test_a_header_of_safetensors_that_lies_about_its_length_is_refused(tmp_path, length):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b'{"w":{}}')
    assert nanhunt("check", tmp_path / "x.safetensors", preexec_fn=bounded).returncode == 3


@pytest.mark.parametrize("deep", [b'{"a":' * 300_000, b"[" * 300_000])
def test_a_deep_header_is_refused(tmp_path, deep):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(deep)) + deep)
    assert nanhunt("check", tmp_path / "x.safetensors", preexec_fn=bounded).returncode == 3


def seeds(folder: Path) -> list[Path]:
    """One small checkpoint of each format."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    model, opt = trained(steps=1)
    state = {"model": model.state_dict(), "optimizer": opt.state_dict(), "v": torch.randn(9)[::2]}
    state["a"] = {"big": np.arange(40, dtype=">f4"), "q": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)}
    state["a"] |= {"loss": np.float32(1), "s": torch.ones(3).untyped_storage(), "o": np.array([1, "x"], dtype=object)}
    torch.save(state, folder / "zip.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(model.state_dict(), folder / "x.safetensors")
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "dcp")
    (folder / "shards").mkdir()
    save_file({"a": torch.ones(9)}, folder / "shards" / "m-00001-of-00002.safetensors")
    save_file({"b": torch.ones(9)}, folder / "shards" / "m-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}}
    (folder / "shards" / "m.safetensors.index.json").write_text(json.dumps(index))
    return [folder / "zip.pt", folder / "legacy.pt", folder / "x.safetensors", folder / "dcp", folder / "shards"]


def mutate(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    kind = rng.randrange(4)
    # Descriptions stand at the ends of a file: half of the places are there.
    near = min(len(out), 600)
    place = rng.choice(
        [lambda: rng.randrange(len(out)), lambda: rng.randrange(near), lambda: len(out) - 1 - rng.randrange(near)]
    )
    if kind == 0:
        for _ in range(rng.choice([1, 2, 8, 40])):
            out[place()] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del out[rng.randrange(len(out)) :]
    elif kind == 2:
        begin, length, to = place(), rng.randrange(1, 64), place()
        out[to : to + length] = out[begin : begin + length]
    else:
        at = place()
        out[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f"])
    return bytes(out)


@pytest.mark.parametrize("part", range(4))
def test_a_thousand_mutated_files_end_in_a_status(tmp_path, part):
    files = seeds(tmp_path)
    rng = random.Random(part)
    seen = {}
    for number in range(250):
        one = files[number % len(files)]
        parts = sorted(p for p in one.iterdir() if p.is_file()) if one.is_dir() else [one]
        target = parts[number // len(files) % len(parts)]
        whole = target.read_bytes()
        target.write_bytes(mutate(whole, rng))
        done = nanhunt("check", one, "--json", preexec_fn=bounded)
        target.write_bytes(whole)
        assert done.returncode in CAN_BE, (part, number, target, done.returncode, done.stderr)
        if done.stdout:
            json.loads(done.stdout)
        seen[done.returncode] = seen.get(done.returncode, 0) + 1
    assert {0, 3, 4} <= set(seen)  # some are harmless, some are damaged, some are nothing any more


def test_a_directory_that_shrinks_and_lies_is_damaged_and_not_a_signal(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(1000)}, path)
    whole = path.read_bytes()
    for cut in (0, 1, 21, 22, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert nanhunt("check", path, preexec_fn=bounded).returncode == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_parts_of_a_distributed_checkpoint_that_overlap_are_damage(tmp_path, overlap):
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(4), "b": torch.ones(4)}, checkpoint_id=tmp_path)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    first, second = metadata.storage_data.values()
    if overlap:
        second.offset, second.length = first.offset, first.length
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert nanhunt("check", tmp_path).returncode == (4 if overlap else 0)


def test_answers_follow_the_schema(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(SCHEMA)
    places = [*seeds(tmp_path), tmp_path]
    quantised = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    torch.save({"q": quantised, "n": torch.tensor([float("nan")]), "o": Runs("true")}, tmp_path / "zip2.pt")
    (tmp_path / "bad3.pt").write_bytes(b"PK\x03\x04 and nothing else")
    for place in places:
        for options in ([], ["--full"]):
            validator.validate(json.loads(nanhunt("check", place, "--json", *options).stdout))
    for name in ("zip2.pt", "bad3.pt"):
        validator.validate(json.loads(nanhunt("check", tmp_path / name, "--json").stdout))
