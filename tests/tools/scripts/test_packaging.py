# SPDX-License-Identifier: Apache-2.0
"""What tools/wheel is made of: headers out of a wheel that is far away, faults that a wheel must not have, its SBOM."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools" / "packaging"))
import check_wheel  # noqa: E402
import headers  # noqa: E402
import sbom  # noqa: E402

sys.path.pop(0)


@contextlib.contextmanager
def served(contents: bytes, has_parts: bool):
    """An address on loopback; and what was read of it."""
    ranges: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            body, status = contents, 200
            if has_parts and asked:
                begin, end = int(asked[1]), int(asked[2]) + 1
                body, status = contents[begin:end], 206
            ranges.append(self.headers.get("Range") or "")
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(contents)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/torch.whl", ranges
        finally:
            server.shutdown()


def pytorch_wheel() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        wheel.writestr("torch/lib/libtorch_cpu.so", b"\0" * (8 << 20))
        wheel.writestr("torch/include/torch/library.h", "#pragma once\n", zipfile.ZIP_DEFLATED)
        wheel.writestr("torch/include/c10/core/Device.h", "// a device\n" * 1000, zipfile.ZIP_DEFLATED)
        wheel.writestr("torch/lib/libtorch_cuda.so", b"\0" * (8 << 20))
    return packed.getvalue()


def test_headers_are_read_out_of_a_wheel_that_is_not_fetched(tmp_path, monkeypatch):
    contents = pytorch_wheel()
    with served(contents, has_parts=True) as (address, ranges):
        monkeypatch.setattr(headers, "_address", lambda *_: address)
        folder = headers.fetch("2.11.0", tmp_path, Path(sys.executable), lambda _: None)
        assert (folder / "torch" / "library.h").read_text() == "#pragma once\n"
        assert (folder / "c10" / "core" / "Device.h").read_text() == "// a device\n" * 1000
        assert not (tmp_path / "2.11.0" / "torch" / "lib").exists()
        assert len(ranges) < 8, "of 17 blocks"
        # They are kept.
        ranges.clear()
        assert headers.fetch("2.11.0", tmp_path, Path(sys.executable), lambda _: None) == folder and ranges == []
    assert [path.name for path in tmp_path.iterdir()] == ["2.11.0"]


def test_an_index_that_serves_no_parts_gives_the_wheel_which_is_removed(tmp_path, monkeypatch):
    contents = pytorch_wheel()
    told = []

    def pip(_, *words):
        assert words[0] == "download"
        (Path(words[words.index("--dest") + 1]) / "torch-2.11.0.whl").write_bytes(contents)

    monkeypatch.setattr(headers, "_pip", pip)
    with served(contents, has_parts=False) as (address, _):
        monkeypatch.setattr(headers, "_address", lambda *_: address)
        folder = headers.fetch("2.11.0", tmp_path, Path(sys.executable), told.append)
    assert (folder / "torch" / "library.h").is_file() and list(tmp_path.rglob("*.whl")) == []
    assert "the index does not serve parts of files" in told[-1]


@pytest.mark.parametrize("contents", [b"no zip file", b""])
def test_a_wheel_that_is_none_leaves_nothing_and_says_so(tmp_path, monkeypatch, contents):
    monkeypatch.setattr(headers, "_address", lambda *_: "file:///nonexistent")
    monkeypatch.setattr(headers, "_pip", lambda _, *words: (
        Path(words[words.index("--dest") + 1]) / "torch.whl").write_bytes(contents))
    with pytest.raises(headers.NotToBeHad, match="zip"):
        headers.fetch("2.11.0", tmp_path, Path(sys.executable), lambda _: None)
    assert list(tmp_path.iterdir()) == []


TAP = b"\x7fELF of a tap"


def packed(tmp_path, change=lambda files: None, record=None, name="nanhunt-0.1.0-py3-none-manylinux_2_34_x86_64.whl"):
    """A small wheel that is as it must be, changed; `record` changes what RECORD says."""
    index = {"tap-a-b.so": {"releases": ["2.11.0 abi 1"], "sha256": hashlib.sha256(TAP).hexdigest()}}
    files = {"nanhunt/lib/tap-a-b.so": TAP, "nanhunt/lib/taps.json": json.dumps(index).encode(),
             "nanhunt-0.1.0.dist-info/licenses/LICENSE": b"", "nanhunt-0.1.0.dist-info/sboms/nanhunt.cdx.json": b"",
             "nanhunt-0.1.0.dist-info/licenses/tools/packaging/THIRD-PARTY.txt": b""}  # fmt: skip
    change(files)
    rows = {path: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            for path, data in files.items()}  # fmt: skip
    if record is not None:
        record(rows)
    lines = [f"{path},{digest},{len(files.get(path, b''))}" for path, digest in rows.items()]
    files["nanhunt-0.1.0.dist-info/RECORD"] = "\n".join([*lines, "nanhunt-0.1.0.dist-info/RECORD,,"]).encode()
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return tmp_path / name


@pytest.fixture(autouse=True)
def linked(monkeypatch):
    """What readelf would say of the files above."""
    said = {"tap-a-b.so": ({"libtorch_cpu.so", "libc10.so", "libc.so.6"}, {"GLIBC": "2.34"})}
    monkeypatch.setattr(check_wheel, "needs", lambda path: said.get(path.name, ({"libfmt.so.9", "libc.so.6"}, {})))
    return said


def test_a_wheel_that_is_as_it_must_be_has_no_faults_and_its_sizes_are_told(tmp_path):
    faults, rows = check_wheel.check(packed(tmp_path), is_for_others=True)
    assert faults == []
    assert any("tap-a-b.so  (GLIBC_2.34)" in row for row in rows)


PLANTED = {
    "is damaged": dict(),
    "is not as RECORD says": dict(record=lambda rows: rows.update({"nanhunt/lib/taps.json": "sha256=other"})),
    "is not in RECORD": dict(record=lambda rows: rows.pop("nanhunt/lib/taps.json")),
    "taps.json and the taps differ": dict(change=lambda files: files.pop("nanhunt/lib/tap-a-b.so")),
    "is not the tap that was built": dict(change=lambda files: files.update({"nanhunt/lib/tap-a-b.so": TAP + b"!"})),
    "more than 12": dict(change=lambda files: files.update({"nanhunt/lib/tap-a-b.so": TAP + b"\0" * 12_000_000})),
    "needs libfmt.so.9": dict(change=lambda files: files.update({"nanhunt/bin/nanhunt": b"\x7fELF"})),
    "has no manylinux tag": dict(name="nanhunt-0.1.0-py3-none-linux_x86_64.whl"),
    "newer than": dict(name="nanhunt-0.1.0-py3-none-manylinux_2_35_x86_64.whl"),
    "THIRD-PARTY": dict(change=lambda files: files.pop(
        "nanhunt-0.1.0.dist-info/licenses/tools/packaging/THIRD-PARTY.txt")),
    "sboms/nanhunt": dict(change=lambda files: files.pop("nanhunt-0.1.0.dist-info/sboms/nanhunt.cdx.json")),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_of_a_wheel_is_found(tmp_path, fault):
    wheel = packed(tmp_path, **PLANTED[fault])
    if fault == "is damaged":
        wheel.write_bytes(wheel.read_bytes().replace(TAP, TAP[:-1] + b"?"))
    faults, _ = check_wheel.check(wheel, is_for_others=True)
    assert any(fault in one for one in faults), faults


def test_a_tap_that_does_not_ask_for_the_libraries_of_pytorch_is_found(tmp_path, linked):
    linked["tap-a-b.so"] = ({"libc10.so", "libtorch_cpu-1a2b3c.so"}, {})  # as a tool that grafts libraries leaves it
    faults, _ = check_wheel.check(packed(tmp_path), is_for_others=True)
    assert len(faults) == 1 and "not for PyTorch's libraries" in faults[0]


def test_what_a_program_links_to_and_its_newest_symbols_are_read(monkeypatch):
    monkeypatch.undo()
    libraries, versions = check_wheel.needs(Path(sys.executable).resolve())
    assert "libc.so.6" in libraries and re.fullmatch(r"2\.\d+", versions["GLIBC"])


def test_the_list_of_what_is_inside_is_the_same_for_the_same_build_and_names_every_tap(tmp_path):
    (tmp_path / "components.txt").write_text("commit 1a2b3c4d\nfmt 9.1.0\nzstd 1.5.4\ncharts yes\nproducts ours\n")
    index = {"tap-b.so": {"releases": ["2.5.0 abi 0", "2.5.1 abi 0"], "sha256": "bb"},
             "tap-c.so": {"releases": ["2.5.1 abi 1"], "sha256": "cc"}}  # fmt: skip
    (tmp_path / "taps.json").write_text(json.dumps(index))
    script = ROOT / "tools" / "packaging" / "sbom.py"
    for out in ("one", "two"):
        words = ["0.1.0", tmp_path / "components.txt", tmp_path, tmp_path / out]
        subprocess.run([sys.executable, script, *words], check=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    told = json.loads((tmp_path / "one").read_text())
    names = [(one["name"], one["version"]) for one in told["components"]]
    lock = json.loads((ROOT / "reports" / "html" / "package-lock.json").read_text())["packages"]
    assert names[:3] == [("fmt", "9.1.0"), ("zstd", "1.5.4"), ("dagre", lock["node_modules/@dagrejs/dagre"]["version"])]
    assert told["components"][-1]["properties"] == [{"name": "tap-b.so", "value": "bb"},
                                                    {"name": "tap-c.so", "value": "cc"}]
    assert told["metadata"]["component"]["properties"][0] == {"name": "commit", "value": "1a2b3c4d"}


def test_every_component_has_its_licence_in_the_text_that_goes_with_the_wheel():
    text = (ROOT / "tools" / "packaging" / "THIRD-PARTY.txt").read_text()
    other_names = {"nlohmann_json": "nlohmann/json", "zstd": "Zstandard", "uplot": "uPlot", "torch": "PyTorch"}
    assert [name for name in sbom.KNOWN if other_names.get(name, name) not in text] == []
    project = (ROOT / "pyproject.toml").read_text()
    assert {known.licence for known in sbom.KNOWN.values()} <= set(re.search('license = "(.*)"', project)[1].split())


@pytest.mark.parametrize("words, why", [
    (["--releases", "2.x"], "--releases takes"),
    (["--releases", ""], "--releases takes"),
    (["--taps", "/nonexistent"], "there is no folder"),
    (["--build", "/nonexistent"], "there is no folder"),
    (["--jobs", "many"], "invalid int"),
])  # fmt: skip
def test_wrong_usage_of_the_tool_is_said(words, why):
    done = subprocess.run(["/usr/bin/python3", ROOT / "tools" / "wheel", *words], capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr


def test_the_list_of_releases_is_in_order_and_each_is_there_once():
    rows = [line.split() for line in (ROOT / "tools" / "torch_releases" / "releases.txt").read_text().splitlines()]
    releases = [row[0] for row in rows if row[0] != "#"]
    numbers = [tuple(map(int, release.split("."))) for release in releases]
    assert numbers == sorted(set(numbers)) and all(len(one) == 3 for one in numbers)
