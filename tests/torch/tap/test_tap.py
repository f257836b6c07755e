# SPDX-License-Identifier: Apache-2.0
"""The tap library: where it comes from, what is said where there is none, and that it leaves nothing behind."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hunting import cli
from nanhunt._tap import tap_build
from op_rows import watched_ops

ROOT = Path(__file__).resolve().parents[3]
TRAIN = """
import torch
m = torch.nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(2):
    o.zero_grad()
    (m(torch.ones(2)) / 0).sum().backward()
    o.step()
print("trained")
"""


def trained(tmp_path, level="ops", package=ROOT / "hooks" / "torch", **environment):
    """A run of TRAIN under a watch: stdout, stderr, folder."""
    watch = f"with nanhunt.watch(out={str(tmp_path / 'run')!r}, level={level!r}, quiet=True):\n"
    code = "import torch, nanhunt\n" + watch + "".join(f"    {line}\n" for line in TRAIN.splitlines())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "PYTHONPATH": str(package), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, tmp_path / "run"


def report(run):
    from op_rows import report as read

    return read(run)


def test_it_is_compiled_once_and_then_found(tmp_path, library):
    cache = tmp_path / "cache"
    out, error, run = trained(tmp_path / "first", NANHUNT_CACHE=str(cache))
    assert out == "trained\n"
    assert error == f"nanhunt: compiling the tap for PyTorch {torch.__version__}, once (about 20 s)\n"
    assert report(run)["findings"][0]["op"] == "aten::div"
    assert [path.name for path in cache.glob("*.so")] == [tap_build.tap_name(ROOT)]
    out, error, run = trained(tmp_path / "again", NANHUNT_CACHE=str(cache))
    assert (out, error) == ("trained\n", "")


@pytest.mark.parametrize("level", ["ops", "sentinel"])
@pytest.mark.parametrize("why", ["no compiler", "a compiler that fails"])
def test_without_a_compiler_the_run_goes_on_and_is_told_what_is_not_watched(tmp_path, library, level, why):
    environment = {"NANHUNT_CACHE": str(tmp_path / "cache")}
    if why == "no compiler":
        environment |= {"PATH": str(tmp_path), "CXX": ""}
    else:
        environment["CXX"] = "false"
    out, error, run = trained(tmp_path, level, **environment)
    assert out == "trained\n"
    said = "there is no C++ compiler" if why == "no compiler" else "could not compile it"
    assert said in error and "Losses, gradients and the loss scaler still are." in error
    told = report(run)
    assert any("the tap is missing" in note and said in note for note in told["coverage"]["unwatched"])
    assert told["coverage"]["steps"] == 2
    assert told["verdict"]["status"] == "fault", "what is said to be watched is"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, library):
    (tmp_path / "file").write_text("")
    out, error, run = trained(tmp_path, NANHUNT_CACHE=str(tmp_path / "file" / "cache"))
    assert out == "trained\n" and "compiling the tap" in error and "for this process alone" in error
    assert report(run)["findings"][0]["op"] == "aten::div"


def test_a_cache_that_cannot_be_written_but_has_it_is_used(tmp_path, library):
    cache = tmp_path / "cache"
    cache.mkdir()
    made, _ = tap_build.compiled(ROOT)
    shutil.copyfile(made, cache / made.name)
    cache.chmod(0o555)
    try:
        out, error, run = trained(tmp_path, NANHUNT_CACHE=str(cache), PATH=str(tmp_path), CXX="")
        assert (out, error) == ("trained\n", "")
        assert [path.name for path in cache.iterdir()] == [made.name]
    finally:
        cache.chmod(0o755)


@pytest.fixture
def packed(tmp_path):
    """The package as a wheel has it, with the sources of the tap in it."""
    package = tmp_path / "site" / "nanhunt"
    shutil.copytree(ROOT / "hooks" / "torch" / "nanhunt", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "hooks" / "torch" / "tap", package / "tap" / "hooks" / "torch" / "tap")
    (package / "tap" / "include" / "nanhunt").mkdir(parents=True)
    for name in ("c_api.h", "c_adapter.h"):
        shutil.copyfile(ROOT / "include" / "nanhunt" / name, package / "tap" / "include" / "nanhunt" / name)
    (package / "lib").mkdir()
    return package


def without_compiler(tmp_path):
    return {"NANHUNT_CACHE": str(tmp_path / "no" / "cache"), "PATH": str(tmp_path), "CXX": ""}


def test_the_tap_of_a_wheel_is_used_where_it_fits(tmp_path, library, packed):
    # Given a wheel with the tap for this PyTorch, and no compiler,
    made, _ = tap_build.compiled(ROOT)
    shutil.copyfile(made, packed / "lib" / made.name)
    # when a run is watched, then nothing is compiled or said, and operations are heard.
    out, error, run = trained(tmp_path, package=packed.parent, **without_compiler(tmp_path))
    assert (out, error) == ("trained\n", "")
    assert report(run)["findings"][0]["op"] == "aten::div"
    assert not (tmp_path / "no").exists()


def test_the_tap_of_a_wheel_for_another_release_is_named_and_not_used(tmp_path, library, packed):
    made, _ = tap_build.compiled(ROOT)
    shutil.copyfile(made, packed / "lib" / made.name.replace(torch.__version__, "2.12.1+cpu"))
    out, error, run = trained(tmp_path, package=packed.parent, **without_compiler(tmp_path))
    assert out == "trained\n"
    assert "there is no C++ compiler" in error and "the package has one for 2.12.1+cpu" in error


def test_a_tap_of_the_wheel_that_cannot_be_loaded_here_is_compiled_instead(tmp_path, library, packed):
    (packed / "lib" / tap_build.tap_name(ROOT)).write_bytes(b"of another machine")
    out, error, run = trained(tmp_path, package=packed.parent)
    assert (out, error) == ("trained\n", ""), "the cache has it"
    assert report(run)["findings"][0]["op"] == "aten::div"


def facts(**environment):
    done = subprocess.run([sys.executable, tap_build.__file__, "facts"], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, **environment}, check=True)
    return json.loads(done.stdout)


def test_the_facts_say_where_the_tap_would_come_from(tmp_path):
    made, _ = tap_build.compiled(ROOT)
    told = facts()
    assert (told["torch"], told["tap"], told["tap_path"]) == (torch.__version__, "cached", str(made))
    told = facts(NANHUNT_CACHE=str(tmp_path / "cache"))
    assert (told["tap"], told["why_no_tap"], bool(told["compiler"])) == ("to_compile", None, True)
    assert not (tmp_path / "cache").exists(), "asking makes nothing"
    told = facts(**without_compiler(tmp_path))
    assert (told["tap"], told["compiler"]) == ("not_possible", None) and "no C++ compiler" in told["why_no_tap"]
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('libcudart.so: cannot open')")
    told = facts(PYTHONPATH=str(tmp_path))
    assert told["torch"] is None and told["why_no_torch"] == "OSError: libcudart.so: cannot open"


def test_the_doctor_tells_of_the_python_that_trains():
    program = cli()
    made, _ = tap_build.compiled(ROOT)
    done = subprocess.run([program, "doctor", "--env", "--json"], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "NANHUNT_PYTHON": sys.executable}, check=True)
    python = json.loads(done.stdout)["python"]
    assert python["torch"] == {"version": torch.__version__, "cuda": torch.version.cuda, "why_not": None}
    assert (python["tap"]["state"], python["tap"]["path"], python["path"]) == ("cached", str(made), sys.executable)
    assert python["library"]["why_not"] is None


def test_another_release_another_compiler_flag_or_other_sources_have_another_name(monkeypatch):
    names = {tap_build.tap_name(ROOT)}
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    names.add(tap_build.tap_name(ROOT))
    monkeypatch.setattr(tap_build, "_flags", lambda: ["-O0"])
    names.add(tap_build.tap_name(ROOT))
    assert len(names) == 3


def test_taken_off_it_leaves_nothing():
    key = torch._C._parse_dispatch_key("Fake")

    def keys_of_ops():  # in words: sets of keys compare by identity in some releases
        return {name: repr(op.non_fallthrough_keys) for name, op in torch._ops._higher_order_ops.items()}

    keys = keys_of_ops()
    with watched_ops() as watched, watched.mode():
        torch.ones(2) + 1
        assert torch._C._dispatch_tls_is_dispatch_key_included(key)
    assert not torch._C._dispatch_tls_is_dispatch_key_included(key)
    assert keys == keys_of_ops()
    seen = len(watched.ops)
    torch.ones(2) + 1
    assert len(watched.ops) == seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_not_heard():
    with watched_ops() as watched, watched.mode():
        torch.ones(2) + 1
        child = os.fork()
        if child == 0:
            before = len(watched.ops)
            torch.ones(2) + 1
            os._exit(0 if len(watched.ops) == before else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_watch_that_an_op_closes_is_closed_and_the_op_goes_on():
    # Given an op of the user's whose kernel closes the watch over it, and opens another,
    watches = [watched_ops(), watched_ops()]
    first = watches[0].__enter__()

    @torch.library.custom_op("nanhunt_tests::closes", mutates_args=(), schema="(Tensor x) -> Tensor")
    def closes(x):
        y = x * 2
        mode.__exit__(None, None, None)
        watches[0].__exit__(None, None, None)
        second.append(watches[1].__enter__())
        return y + 1

    second: list = []
    mode = first.mode()
    mode.__enter__()
    # when it runs,
    result = closes(torch.ones(3))
    # then it has its result, and the second watch hears what comes after, not the end of what began before it.
    assert result.tolist() == [3.0] * 3
    try:
        assert second[0].ops == []
        with second[0].mode():
            torch.ones(3) * 5
        assert [op.name for op in second[0].ops] == ["ones", "mul"]
    finally:
        watches[1].__exit__(None, None, None)


def test_another_thread_is_not_heard():
    with watched_ops() as watched, watched.mode():
        before = len(watched.ops)
        other = threading.Thread(target=lambda: torch.ones(3) * 2)
        other.start()
        other.join()
        assert len(watched.ops) == before
        torch.ones(3) * 2
        assert len(watched.ops) > before


def test_a_storage_that_is_known_is_not_kept_alive():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(1000)
        word = watched.values.identity(x)
        storage = x.untyped_storage()
        assert watched.values.tap.known_word(storage._cdata) == word
        before = torch._C._storage_Use_Count(storage._cdata)
        watched.values.identity(x)
        assert torch._C._storage_Use_Count(storage._cdata) == before


def test_numbers_read_out_of_tensors_are_tied_to_them():
    with watched_ops() as watched, watched.mode():
        x = torch.tensor([0.3])
        y = torch.ones(2) * x.item()
        assert watched.producer(y).reads(watched.contents(x))


def test_an_op_that_could_be_decomposed_but_has_a_kernel_has_a_row():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(3, requires_grad=True)
        torch.nn.functional.silu(x).sum().backward()
        assert watched.producer(x.grad).name == "silu_backward"


def test_in_inference_mode_what_runs_inside_of_an_op_is_seen():
    with watched_ops() as watched, watched.mode(), torch.inference_mode():
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
        assert watched.named("addmm") or watched.named("linear")
