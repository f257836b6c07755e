# SPDX-License-Identifier: Apache-2.0
"""Where the tap library comes from, what it is named after, and what is said where there is none."""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ready_python
import torch
from another_pytorch import another_pytorch
from hunting import cli, needs_cli
from nanhunt._tap import tap_build

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
    done = subprocess.run([*ready_python.command(), "-c", code], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "PYTHONPATH": str(package), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, tmp_path / "run"


def report(run):
    from saved import report_of as read

    return read(run)


def test_it_is_compiled_once_and_then_found(tmp_path, library):
    cache = tmp_path / "cache"
    out, error, run = trained(tmp_path / "first", NANHUNT_CACHE=str(cache))
    assert out == "trained\n"
    assert error == f"nanhunt: compiling the tap for PyTorch {torch.__version__}, once (about 20 s)\n"
    assert report(run)["findings"][0]["op"] == "aten::div"
    assert len(list(cache.glob("*.so"))) == 1
    out, error, run = trained(tmp_path / "again", NANHUNT_CACHE=str(cache))
    assert (out, error) == ("trained\n", "")


@pytest.mark.parametrize("level", ["ops", "live"])
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


def quick_compiler(tmp_path):
    """One that gives what the real one made of the same sources, headers and flags, without taking half a minute."""
    compiler = tmp_path / "quick-g++"
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp -- "{made_tap()}" "$2"\n')
    compiler.chmod(0o755)
    return str(compiler)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, library):
    (tmp_path / "file").write_text("")
    environment = {"NANHUNT_CACHE": str(tmp_path / "file" / "cache"), "CXX": quick_compiler(tmp_path)}
    out, error, run = trained(tmp_path, **environment)
    assert out == "trained\n" and "compiling the tap" in error and "for this process alone" in error
    assert report(run)["findings"][0]["op"] == "aten::div"


def test_a_cache_that_cannot_be_written_but_has_it_is_used(tmp_path, library):
    cache = tmp_path / "cache"
    cache.mkdir()
    made = made_tap()
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
    shutil.copytree(ROOT / "hooks" / "torch" / "nanhunt", package)  # bytecode too, as pip makes it
    shutil.copytree(ROOT / "hooks" / "torch" / "tap", package / "tap" / "hooks" / "torch" / "tap")
    (package / "tap" / "include" / "nanhunt").mkdir(parents=True)
    for name in ("c_api.h", "c_adapter.h"):
        shutil.copyfile(ROOT / "include" / "nanhunt" / name, package / "tap" / "include" / "nanhunt" / name)
    (package / "lib").mkdir()
    return package


def made_tap():
    """The tap for this PyTorch in the cache."""
    with tap_build.compiled(ROOT, tap_build.tap_name(ROOT)) as made:
        return made


def without_compiler(tmp_path):
    return {"NANHUNT_CACHE": str(tmp_path / "no" / "cache"), "PATH": str(tmp_path), "CXX": ""}


def packed_with(packed, name, releases, contents=None):
    """The tap for this PyTorch in the wheel, or other contents, under a name, listed for these releases."""
    contents = made_tap().read_bytes() if contents is None else contents
    (packed / "lib" / name).write_bytes(contents)
    (packed / "lib" / "taps.json").write_text(
        json.dumps({name: {"releases": releases, "sha256": hashlib.sha256(contents).hexdigest()}}))


def test_the_tap_of_a_wheel_is_used_where_it_fits(tmp_path, library, packed):
    # Given a wheel with the tap for this PyTorch, and no compiler,
    packed_with(packed, tap_build.tap_name(ROOT), ["2.9.1 abi 1"])
    # when a run is watched, then nothing is compiled or said, and operations are heard.
    out, error, run = trained(tmp_path, package=packed.parent, **without_compiler(tmp_path))
    assert (out, error) == ("trained\n", "")
    assert report(run)["findings"][0]["op"] == "aten::div"
    assert not (tmp_path / "no").exists()


def test_the_tap_of_a_wheel_for_another_release_is_named_and_not_used(tmp_path, library, packed):
    packed_with(packed, tap_build.tap_name(ROOT).replace("tap-", "tap-0"), ["2.9.1 abi 1", "2.12.1 abi 1"])
    out, error, run = trained(tmp_path, package=packed.parent, **without_compiler(tmp_path))
    assert out == "trained\n"
    assert "there is no C++ compiler" in error and "the package has one for 2.9.1, 2.12.1" in error


@pytest.mark.parametrize("is_of_another", [False, True])
def test_a_pytorch_that_lies_about_its_release_gets_the_tap_that_fits_its_headers(tmp_path, packed, is_of_another):
    # Given a wheel with a tap for 2.9.1: of these headers, or of others, and a PyTorch that says it is 2.9.1,
    name = tap_build.tap_name(ROOT)
    packed_with(packed, name.replace("tap-", "tap-0") if is_of_another else name, ["2.9.1 abi 1"])
    other = another_pytorch(tmp_path, "real.__version__ = '2.9.1'")
    # when it is asked which tap would be used,
    told = facts(PYTHONPATH=other, package=packed, **without_compiler(tmp_path))
    # then it is not believed: the headers decide.
    assert told["torch"] == "2.9.1"
    assert told["tap"] == ("not_possible" if is_of_another else "prebuilt")


@pytest.mark.parametrize("release", [str(torch.__version__), "2.13.0a0+git1234567", "2.13.0+vendor.7"])
def test_a_pytorch_without_headers_is_believed_its_release_if_it_is_one_of_pytorchs_own(tmp_path, packed, release):
    public = str(torch.__version__).split("+")[0]
    packed_with(packed, tap_build.tap_name(ROOT), [f"{public} abi {int(torch._C._GLIBCXX_USE_CXX11_ABI)}"])
    bare = tmp_path / "bare"
    bare.mkdir()
    other = another_pytorch(tmp_path, f"real.__version__, real.__file__ = {release!r}, {str(bare / '__init__.py')!r}")
    told = facts(PYTHONPATH=other, package=packed, **without_compiler(tmp_path))
    if release == str(torch.__version__):
        assert told["tap"] == "prebuilt"
    else:
        assert told["tap"] == "not_possible" and "no C++ headers" in told["why_no_tap"]


@needs_cli
def test_two_pytorchs_in_one_process_tree_each_have_the_tap_that_fits(tmp_path, library):
    # Given a program that trains, and starts another Python with another PyTorch, for which there is no tap,
    bare = tmp_path / "bare"
    bare.mkdir()
    other = another_pytorch(tmp_path, f"real.__version__, real.__file__ = '2.9.1', {str(bare / '__init__.py')!r}")
    child = tmp_path / "child.py"
    child.write_text(TRAIN)
    program = tmp_path / "train.py"
    program.write_text(f"""{TRAIN}
import os, subprocess, sys
path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep)[:1], {other!r}])
sys.exit(subprocess.run([sys.executable, {str(child)!r}], env={{**os.environ, "PYTHONPATH": path}}).returncode)
""")
    # when both are watched,
    done = subprocess.run([cli(), "run", "--out", tmp_path / "run", "--", sys.executable, program], capture_output=True,
                          text=True, timeout=1800)
    # then both train, the first is heard, and of the second it is said why it is not.
    assert (done.returncode, done.stdout) == (0, "trained\ntrained\n"), done.stderr
    assert done.stderr.count("operations cannot be watched") == 1 and "no C++ headers" in done.stderr
    assert "aten::div" in {finding["op"] for finding in report(tmp_path / "run")["findings"]}


@pytest.mark.parametrize("index", ["{", "[]", '{"tap-x.so": 3}', '{"tap-x.so": ["2.9.1 abi 1"]}',
                                   '{"tap-x.so": {"releases": 3, "sha256": ""}}'])
def test_a_damaged_list_of_taps_is_as_none(tmp_path, library, packed, index):
    (packed / "lib" / "taps.json").write_text(index)
    told = facts(package=packed, **without_compiler(tmp_path))
    assert (told["tap"], told["prebuilt_for"]) == ("not_possible", [])


@pytest.mark.parametrize("damage", ["cut", "a byte"])
def test_a_damaged_tap_of_the_wheel_is_never_loaded_and_the_run_goes_on(tmp_path, library, packed, damage):
    # Given a wheel whose tap for this PyTorch is not as it was packed, and no compiler,
    name = tap_build.tap_name(ROOT)
    packed_with(packed, name, ["2.9.1 abi 1"])
    contents = (packed / "lib" / name).read_bytes()
    middle = len(contents) // 2
    other = contents[:middle] if damage == "cut" else contents[:middle] + b"?!" + contents[middle + 2:]
    (packed / "lib" / name).write_bytes(other)
    # when a run is watched, then it goes on, and is told what is damaged and what to do.
    out, error, run = trained(tmp_path, package=packed.parent, **without_compiler(tmp_path))
    assert out == "trained\n"
    assert f"{packed / 'lib' / name} is damaged: install nanhunt again; there is no C++ compiler" in error
    # And doctor says so too.
    told = facts(package=packed, **without_compiler(tmp_path))
    assert told["tap"] == "not_possible" and "damaged" in told["why_no_tap"] and "no C++ compiler" in told["why_no_tap"]


def test_a_tap_of_the_wheel_that_cannot_be_loaded_here_is_compiled_instead(tmp_path, library, packed):
    packed_with(packed, tap_build.tap_name(ROOT), ["2.9.1 abi 1"], b"of another machine")
    out, error, run = trained(tmp_path, package=packed.parent)
    assert (out, error) == ("trained\n", ""), "the cache has it"
    assert report(run)["findings"][0]["op"] == "aten::div"


def facts(package=ROOT / "hooks" / "torch" / "nanhunt", **environment):
    done = subprocess.run([sys.executable, package / "_tap" / "tap_build.py", "facts"], capture_output=True, text=True,
                          timeout=1800, env={**os.environ, **environment}, check=True)
    return json.loads(done.stdout)


def test_the_facts_say_where_the_tap_would_come_from(tmp_path):
    made = made_tap()
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
    made = made_tap()
    done = subprocess.run([program, "doctor", "--env", "--json"], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "NANHUNT_PYTHON": sys.executable}, check=True)
    python = json.loads(done.stdout)["python"]
    assert python["torch"] == {"version": torch.__version__, "cuda": torch.version.cuda, "why_not": None}
    assert (python["tap"]["state"], python["tap"]["path"], python["path"]) == ("cached", str(made), sys.executable)
    assert python["library"]["why_not"] is None


def test_other_headers_another_compiler_flag_or_other_sources_have_another_name(tmp_path):
    def headers(text):
        include = tmp_path / text
        for name in ("torch/library.h", "c10/core/TensorImpl.h", "torch/headeronly/version.h"):
            (include / name).parent.mkdir(parents=True, exist_ok=True)
            (include / name).write_text(text if name.endswith("Impl.h") else "")
        return tap_build.Pytorch(include, 1, "2.9.1")

    one, other = headers("one"), headers("other")
    digest = one.digest_headers()
    assert len({digest, other.digest_headers(), one._replace(abi=0).digest_headers()}) == 3
    assert one._replace(release="2.9.0").digest_headers() == digest, "releases with the same headers share one"
    (one.include / "torch" / "headeronly" / "version.h").write_text("#define TORCH_VERSION 9")
    assert one.digest_headers() == digest, "the release alone is no difference"
    assert len({tap_build.name_for(ROOT, "0" * 16, abi) for abi in (0, 1)}) == 2


FAILS = """#!/bin/sh
echo run >> {log}
echo "x.h:1:1: {says}" >&2
exit 1
"""


def failing_compiler(tmp_path, says="error: it does not know this"):
    compiler = tmp_path / "g++"
    compiler.write_text(FAILS.format(log=tmp_path / "log", says=says))
    compiler.chmod(0o755)
    return {"NANHUNT_CACHE": str(tmp_path / "cache"), "CXX": str(compiler)}


@pytest.mark.parametrize("says", ["error: g++: fatal error: Killed signal terminated program cc1plus",
                                  "error: cannot write: No space left on device"])
def test_a_failure_that_passes_is_not_remembered(tmp_path, library, says):
    environment = failing_compiler(tmp_path, says)
    for run in ("1", "2"):
        _, error, _ = trained(tmp_path / run, **environment)
        assert "compiling the tap" in error and says[7:] in error
    assert (tmp_path / "log").read_text() == "run\nrun\n" and facts(**environment)["tap"] == "to_compile"


def test_where_no_lock_can_be_had_it_is_compiled_for_the_process_alone_and_nothing_is_left(tmp_path, library):
    environment = failing_compiler(tmp_path) | {"TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cache" / made_tap().with_suffix(".lock").name).mkdir(parents=True)
    _, error, _ = trained(tmp_path, **environment)
    assert "for this process alone" in error and not list((tmp_path / "scratch").glob("nanhunt-*"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize(("owner", "mode", "state"), [(65534, 0o777, "to_compile"), (65534, 0o755, "cached"),
                                                      (0, 0o777, "cached")])
def test_a_tap_that_another_user_put_where_everybody_may_write_is_not_loaded(tmp_path, owner, mode, state):
    made, cache = made_tap(), tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    shutil.copyfile(made, cache / made.name)
    os.chown(cache / made.name, owner, owner)
    assert facts(NANHUNT_CACHE=str(cache))["tap"] == state


def test_a_compile_that_failed_is_not_tried_again_until_the_compiler_is_another(tmp_path, library):
    cache, log, compiler = tmp_path / "cache", tmp_path / "log", tmp_path / "g++"
    environment = failing_compiler(tmp_path)
    # Given a compile that failed once,
    _, error, _ = trained(tmp_path / "1", **environment)
    assert "it does not know this" in error and "said before" not in error
    # when runs start again, then the reason is told with what to do, and nobody compiles.
    for again in ("2", "3"):
        _, error, run = trained(tmp_path / again, **environment)
        (failure,) = cache.glob("*.failed")
        assert "it does not know this" in error and f"remove {failure} to try again" in error
        assert "compiling the tap" not in error
    assert log.read_text() == "run\n"
    told = facts(**environment)
    assert (told["tap"], told["tap_path"]) == ("failed", str(failure)) and "it does not know this" in told["why_no_tap"]
    # Another compiler is asked, and so is the same where the user says so.
    compiler.write_text(compiler.read_text() + "\n")
    os.utime(compiler, ns=(1, 1))
    trained(tmp_path / "4", **environment)
    assert log.read_text() == "run\nrun\n"
    failure.unlink()
    trained(tmp_path / "5", **environment)
    assert log.read_text() == "run\nrun\nrun\n"


def test_a_cached_tap_that_is_of_no_use_here_is_compiled_anew(tmp_path, library):
    # Given a cache with a file of the right name that another machine left, or that is damaged,
    made = made_tap()
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / made.name).write_bytes(b"of another machine")
    # when a run starts, then one is compiled in its place, and it is used from then on.
    out, error, run = trained(tmp_path / "1", NANHUNT_CACHE=str(cache), CXX=quick_compiler(tmp_path))
    assert out == "trained\n" and error.startswith("nanhunt: compiling the tap")
    assert report(run)["findings"][0]["op"] == "aten::div"
    out, error, run = trained(tmp_path / "2", NANHUNT_CACHE=str(cache))
    assert (out, error) == ("trained\n", "")
