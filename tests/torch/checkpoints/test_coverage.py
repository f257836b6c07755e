# SPDX-License-Identifier: Apache-2.0
"""What is no plain tensor: NumPy arrays, storages, quantised and one-byte formats. What is not judged is said."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
import torch
from checkpoint_runs import check, ids, nanhunt, tensors

BOTH = pytest.mark.parametrize("planted", [False, True])
ARRAYS = [
    ("<f2", "C"), ("<f4", "C"), ("<f8", "C"), (">f2", "C"), (">f4", "C"), (">f8", "C"), ("<f4", "F"), (">f8", "F"),
    ("<c8", "C"), (">c16", "C"),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype, order", ARRAYS)
def test_a_numpy_array_is_judged_in_each_byte_order_and_protocol(tmp_path, dtype, order, protocol, planted):
    rng = np.random.default_rng(3)
    array = np.array(rng.standard_normal((5, 4)), dtype=dtype, order=order)
    if planted:
        array[2, 3], array[4, 0] = math.nan, -math.inf
    torch.save({"history": array, "rest": torch.ones(2)}, tmp_path / "x.pt", pickle_protocol=protocol)
    status, answer = check(tmp_path / "x.pt")
    found = tensors(answer)["history"]
    parts = array.astype(array.dtype.newbyteorder("=")).ravel(order="K")
    parts = parts.view(parts.real.dtype) if dtype[1] == "c" else parts
    finite = parts[np.isfinite(parts)]
    assert (status, found["elements"], answer["coverage"]["not_judged"]) == (int(planted), parts.size, 0)
    counts = (found["nan"], found["pos_inf"], found["neg_inf"], found["zero"])
    assert counts == (np.isnan(parts).sum(), 0, np.isneginf(parts).sum(), (finite == 0).sum())
    assert found["amax"] == float(np.abs(finite).max())
    if planted and dtype[1] == "f":
        assert found["first_nonfinite"] == ([2, 3] if order == "C" else [4, 0])


@BOTH
def test_arrays_of_one_file_are_each_judged(tmp_path, planted):
    last = math.nan if planted else 3.0
    held = {
        "empty": np.zeros((0, 3)),
        "text": np.array(["a"]),
        "ints": np.arange(5, dtype=np.int16),
        "one": np.array(2.0),
    }
    held |= {"objects": np.array([torch.tensor([last]), None], dtype=object), "flags": np.array([True])}
    held |= {"same": held["one"], "view": np.arange(10.0)[::2], "rng": np.random.default_rng(1).bit_generator.state}
    torch.save(held, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    status, answer = check(tmp_path / "x.pt")
    assert (status, answer["coverage"]["not_judged"]) == (int(planted), 0)
    found = tensors(answer)
    assert {"empty", "ints", "one", "objects.0", "flags", "same", "view"} <= set(found)
    assert [found[name]["judged"] for name in ("empty", "one", "view")] == [True] * 3
    assert [one["tensor"] for one in answer["findings"]] == (["objects.0"] if planted else [])


@BOTH
@pytest.mark.parametrize("make", [np.float32, np.float64, float])
def test_a_loss_beside_the_weights_is_read(tmp_path, make, planted):
    loss = make(math.nan if planted else 0.5)
    held = {"w": torch.ones(3), "val_loss": loss, "losses": [make(1), loss], "best_loss": make(math.inf), "lr": make(1)}
    torch.save(held, tmp_path / "x.pt")
    status, answer = check(tmp_path / "x.pt")
    assert (status, ids(answer)) == (0, ["nonfinite-value"] if planted else [])
    assert [one["numbers"] for one in answer["findings"]] == (["NaN, as are 1 more"] if planted else [])


@BOTH
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_a_typed_storage_is_judged(tmp_path, dtype, zipped, planted):
    values = torch.ones(6, dtype=dtype)
    wrong = planted and dtype.is_floating_point
    if wrong:
        values[4] = math.nan
    held = {"storage": torch.storage.TypedStorage(wrap_storage=values.untyped_storage(), dtype=dtype, _internal=True)}
    torch.save(held, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    status, answer = check(tmp_path / "x.pt")
    assert (status, answer["coverage"]["not_judged"]) == (int(wrong), 0)
    assert tensors(answer)["storage"]["first_nonfinite"] == ([4] if wrong else None)


@BOTH
def test_an_untyped_storage_is_judged_as_the_tensor_that_shares_it(tmp_path, planted):
    values = torch.ones(6, dtype=torch.float8_e5m2)
    values[4] = math.nan if planted else 1
    torch.save({"storage": values.untyped_storage(), "part": values[:2]}, tmp_path / "x.pt")
    status, answer = check(tmp_path / "x.pt")
    assert (status, answer["coverage"]["not_judged"]) == (int(planted), 0)
    assert tensors(answer)["storage"]["dtype"] == "e5m2"


def test_what_is_not_judged_stands_in_the_headline_and_alone_is_inconclusive(tmp_path):
    held = {"storage": torch.tensor([math.nan]).untyped_storage(), "wide": np.ones(3, dtype=np.longdouble)}
    torch.save(held | {"n": torch.arange(3)}, tmp_path / "x.pt")
    done = nanhunt("check", tmp_path / "x.pt")
    assert done.returncode == 5
    assert done.stdout.startswith(
        "inconclusive: nothing could be judged that can hold a NaN: 2 not judged, first storage (a storage of bytes)"
    )
    unread = check(tmp_path / "x.pt")[1]["coverage"]["unread"]
    assert [one["tensor"] for one in unread] == ["storage", "wide"]
    torch.save(held | {"w": torch.ones(3)}, tmp_path / "x.pt")
    done = nanhunt("check", tmp_path / "x.pt")
    assert done.returncode == 0
    assert done.stdout.startswith("clean: only 1 of 3 tensors judged and sound; 2 not judged, first storage (")
    torch.save({"n": torch.arange(3), "w": torch.ones(3)}, tmp_path / "x.pt")
    said = nanhunt("check", tmp_path / "x.pt").stdout
    assert said.startswith("clean: 2 tensors judged, all of them sound (1 that can hold no NaN)\n")
    torch.save({"n": torch.arange(3)}, tmp_path / "x.pt")
    said = nanhunt("check", tmp_path / "x.pt").stdout
    assert said.startswith("clean: 1 tensor that can hold no NaN\n")


@BOTH
def test_a_series_says_that_its_good_one_was_not_judged_whole(tmp_path, planted):
    held = {"w": torch.ones(3)} | ({"storage": torch.ones(3).untyped_storage()} if planted else {})
    words = " (not all of it judged)" if planted else ""
    for step in (1, 2):
        torch.save(held, tmp_path / f"step_{step}.pt")
    first = nanhunt("check", tmp_path).stdout.splitlines()[0]
    assert first == f"clean: the newest of 2 checkpoints is good: step_2.pt{words}"
    torch.save({"w": torch.tensor([math.nan])}, tmp_path / "step_3.pt")
    first = nanhunt("check", tmp_path).stdout.splitlines()[0]
    assert first == f"fault: of 3 checkpoints, newest good one step_2.pt{words}, first bad one step_3.pt"


@BOTH
def test_a_warning_says_what_was_not_judged(tmp_path, planted):
    held = {"losses": torch.tensor([math.nan])} | ({"storage": torch.ones(3).untyped_storage()} if planted else {})
    torch.save(held, tmp_path / "x.pt")
    first = nanhunt("check", tmp_path / "x.pt").stdout.splitlines()[0]
    assert first.startswith("warning: nonfinite-value in losses (1 NaN of 1, first at [0])")
    assert first.endswith("; 1 not judged, first storage (a storage of bytes)" if planted else "[0])")


@BOTH
@pytest.mark.parametrize("channels", [False, True])
def test_a_quantised_tensor_is_judged_by_its_scales(tmp_path, channels, planted):
    values = torch.randn(4, 3)
    if channels:
        scales = torch.tensor([0.1, math.nan if planted else 0.1, 0.1, 0.2])
        q = torch.quantize_per_channel(values, scales.nan_to_num(0.5), torch.zeros(4).long(), 0, torch.qint8)
        if planted:
            q = torch._make_per_channel_quantized_tensor(q.int_repr(), scales.double(), torch.zeros(4).long(), 0)
    else:
        q = torch._make_per_tensor_quantized_tensor(torch.ones(4, dtype=torch.int8), math.nan if planted else 0.1, 0)
    torch.save({"q": q}, tmp_path / "x.pt")
    status, answer = check(tmp_path / "x.pt")
    coverage = {key: answer["coverage"][key] for key in ("judged", "always_finite", "not_judged")}
    assert coverage == (
        {"judged": 1, "always_finite": 2, "not_judged": 0}
        if channels
        else {"judged": 0, "always_finite": 1, "not_judged": 0}
    )
    expected = "nonfinite-tensor" if channels else "nonfinite-scale"
    assert (status, ids(answer)) == ((1, [expected]) if planted else (0, []))
    assert [one["tensor"] for one in answer["findings"]] == (["q.q_scale"] if planted else [])


def e8m0(code):
    return 2.0 ** (code - 127)


def fnuz(mantissa_bits, bias):
    def value(code):
        exponent, mantissa = (code & 0x7F) >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        size = mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias)
        return -size if code & 0x80 else size

    return value


BYTES = {
    "e8m0": (torch.float8_e8m0fnu, "F8_E8M0", 0xFF, e8m0, 2.0**-127),
    "e4m3fnuz": (torch.float8_e4m3fnuz, "F8_E4M3FNUZ", 0x80, fnuz(3, 8), 2.0**-7),
    "e5m2fnuz": (torch.float8_e5m2fnuz, "F8_E5M2FNUZ", 0x80, fnuz(2, 16), 2.0**-15),
}


@BOTH
@pytest.mark.parametrize("writer", ["torch", "safetensors"])
@pytest.mark.parametrize("name", BYTES)
def test_a_format_of_one_byte_is_judged_by_its_codes(tmp_path, name, writer, planted):
    dtype, word, nan_code, value, min_normal = BYTES[name]
    codes = [code for code in range(256) if code != nan_code] + [1]
    if planted:
        codes[200] = nan_code
    raw = torch.tensor(codes, dtype=torch.uint8)
    if writer == "torch":
        path = tmp_path / "x.pt"
        torch.save({"s": raw.view(16, 16).view(dtype).t()}, path)
    else:
        path = tmp_path / "x.safetensors"
        header = json.dumps({"s": {"dtype": word, "shape": [16, 16], "data_offsets": [0, 256]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(codes))
    status, answer = check(path)
    found = tensors(answer)["s"]
    values = [value(code) for code in codes if code != nan_code]
    assert (status, found["dtype"], found["elements"], found["nan"]) == (int(planted), name, 256, int(planted))
    assert found["zero"] == values.count(0)
    assert found["subnormal"] == sum(0 < abs(x) < min_normal for x in values)
    assert found["amax"] == max(map(abs, values))
    wide = raw.view(dtype).float()
    assert int(wide.isnan().sum()) == found["nan"]
    assert float(wide[wide.isfinite()].abs().max()) == found["amax"]
    where = [12, 8] if writer == "safetensors" else [8, 12]
    assert found["first_nonfinite"] == (where if planted else None)


def test_a_diff_of_one_byte_formats_compares_values(tmp_path):
    a, b = torch.full((8,), 127, dtype=torch.uint8), torch.full((8,), 127, dtype=torch.uint8)
    b[3], b[5] = 0xFF, 129
    torch.save({"s": a.view(torch.float8_e8m0fnu)}, tmp_path / "a.pt")
    torch.save({"s": b.view(torch.float8_e8m0fnu)}, tmp_path / "b.pt")
    (change,) = json.loads(nanhunt("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").stdout)["tensors"]
    assert (change["changed"], change["newly_nonfinite"], change["largest_change"]) == (2, 1, 3.0)


def test_fp4_holds_no_nan(tmp_path):
    torch.save({"w": torch.full((4, 4), 0x77, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, tmp_path / "x.pt")
    status, answer = check(tmp_path / "x.pt")
    assert (status, answer["coverage"]["always_finite"], answer["coverage"]["not_judged"]) == (0, 1, 0)


@BOTH
def test_int8_weights_are_judged_by_the_scale_beside_them(tmp_path, planted):
    save_file = pytest.importorskip("safetensors.torch").save_file
    scale = torch.tensor([0.1, math.nan if planted else 0.2])
    save_file({"w": torch.ones(2, 8, dtype=torch.int8), "w_scale": scale}, tmp_path / "x.safetensors")
    status, answer = check(tmp_path / "x.safetensors")
    assert (status, answer["coverage"]["judged"], answer["coverage"]["always_finite"]) == (int(planted), 1, 1)
    if not planted:
        assert answer["headline"] == "2 tensors judged, all of them sound (1 that can hold no NaN)"
