# SPDX-License-Identifier: Apache-2.0
"""The start-up file of the package: attaches once torch was imported, and is noticed by nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BOOT = Path(__file__).resolve().parents[2] / "hooks" / "torch" / "nanhunt" / "boot" / "sitecustomize.py"
# What the run is given in place of the package: it only says that it was called, and what of torch was there by then.
SESSION = """
import os, sys
def attach_from_environment():
    with open(os.environ["MARKS"], "a") as marks:
        marks.write(getattr(sys.modules["torch"], "tensor", "half imported") + "\\n")
"""
TORCH = "import torch_part\ntensor = 'whole'\n"


class Run:
    def __init__(self, folder: Path):
        self.folder = folder
        self.boot = folder / "env" / "nanhunt" / "boot"
        self.libraries = folder / "libraries"
        self.log = folder / "log"
        self.write("env/nanhunt/__init__.py", "")
        self.write("env/nanhunt/_attach.py", SESSION)
        self.write("env/neighbour.py", "")
        self.write("libraries/torch/__init__.py", TORCH)
        self.write("libraries/torch_part.py", "")
        self.boot.mkdir()
        shutil.copy(BOOT, self.boot)
        self.log.touch()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def python(self, *words: str, watched: bool = True, before: str = "") -> subprocess.CompletedProcess:
        folders = [str(self.boot)] if watched else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NANHUNT"))}
        environment |= {
            "PYTHONPATH": os.pathsep.join([*folders, *filter(None, [before]), str(self.libraries)]),
            "NANHUNT_RUN_DIR": str(self.folder / "run"),
            "NANHUNT_BOOT_LOG": str(self.log),
            "MARKS": str(self.folder / "marks"),
        }
        command = [sys.executable, *words]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=1800)

    def attached(self) -> list[str]:
        marks = self.folder / "marks"
        return marks.read_text().split("\n")[:-1] if marks.exists() else []


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def output_of(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_it_attaches_once_when_torch_has_been_executed(run):
    output_of(run.python("-c", "import torch; import torch"))
    assert run.attached() == ["whole"]
    assert run.log.read_text().split("\n") == ["started", "torch", "attached", ""]


def test_a_python_that_does_not_import_torch_is_left_as_it_was(run):
    look = "import sys; print(sorted(sys.modules)); print(sys.path, len(sys.meta_path))"
    modules, path = output_of(run.python("-c", look)).splitlines()
    modules_alone, path_alone = output_of(run.python("-c", look, watched=False)).splitlines()
    # Nothing more is imported: that is what makes its start cheap.
    assert set(eval(modules)) - set(eval(modules_alone)) <= {"sitecustomize"}
    assert path.rsplit(" ", 1)[0] == path_alone.rsplit(" ", 1)[0]
    assert int(path.split()[-1]) == int(path_alone.split()[-1]) + 1
    assert run.attached() == []


def test_without_a_run_folder_it_does_nothing(run):
    look = """
import os, subprocess, sys
del os.environ["NANHUNT_RUN_DIR"]
subprocess.run([sys.executable, "-c", "import torch"], check=True)
"""
    output_of(run.python("-c", look))
    assert run.attached() == []


HIDDEN = ("print('hidden', __name__, __file__)", "import torch; print('torch', torch.tensor)")


@pytest.mark.parametrize("hidden", HIDDEN)
def test_the_sitecustomize_that_it_hides_is_run(run, hidden):
    theirs = run.write("theirs/sitecustomize.py", hidden)
    script = "import sys, sitecustomize; print(sitecustomize.__file__)"
    assert output_of(run.python("-c", script, before=str(theirs.parent))) == output_of(
        run.python("-c", script, before=str(theirs.parent), watched=False)
    )
    assert run.attached() == (["whole"] if "torch" in hidden else [])


def test_what_the_hidden_one_raises_is_told_as_without_us_and_torch_is_watched(run):
    for error in ("1 / 0", "import not_there"):
        theirs = run.write("theirs/sitecustomize.py", error)
        watched = run.python("-c", "import torch", before=str(theirs.parent))
        alone = run.python("-c", "import torch", before=str(theirs.parent), watched=False)
        assert watched.returncode == alone.returncode == 0
        assert watched.stderr == alone.stderr != ""
    assert run.attached() == ["whole", "whole"]


def test_a_finder_of_the_hidden_one_does_not_keep_it_away(run):
    finder = """
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path, target)
sys.meta_path.insert(0, Finder())
"""
    theirs = run.write("theirs/sitecustomize.py", finder)
    output_of(run.python("-c", "import torch", before=str(theirs.parent)))
    assert run.attached() == ["whole"]


@pytest.mark.parametrize(
    "session", ["raise RuntimeError('not today')", "def attach_from_environment(): raise OSError('disk\\nfull')", "x ="]
)
def test_a_failure_to_attach_never_reaches_the_run_and_is_noted(run, session):
    run.write("env/nanhunt/_attach.py", session)
    assert output_of(run.python("-c", "import torch; print(torch.tensor)")) == "whole\n"
    line = run.log.read_text().splitlines()[-1]
    assert line.startswith("failed ") and any(word in line for word in ("not today", "disk full", "SyntaxError"))


def test_a_log_that_cannot_be_written_is_no_matter(run):
    run.log.unlink()
    output_of(run.python("-c", "import torch"))
    assert run.attached() == ["whole"] and not run.log.exists()


def test_torch_looks_as_it_does_without_us(run):
    look = (
        "import importlib.util; importlib.util.find_spec('torch'); import torch, sys; "
        "print(type(torch.__loader__), torch.__spec__.loader is torch.__loader__, vars(torch.__loader__), "
        "[type(f) for f in sys.meta_path])"
    )
    assert output_of(run.python("-c", look)) == output_of(run.python("-c", look, watched=False))
    assert run.attached() == ["whole"]


def test_an_import_of_torch_that_fails_fails_as_without_us_and_the_next_is_watched(run):
    run.write("libraries/torch_part.py", "import os\nif not os.environ.pop('SECOND', None): raise ImportError('no')\n")
    script = "import os\ntry: import torch\nexcept ImportError as e: print(e)\nos.environ['SECOND'] = '1'\nimport torch"
    assert output_of(run.python("-c", script)) == "no\n"
    assert run.attached() == ["whole"]


def test_no_torch_at_all_is_the_error_that_it_was(run):
    shutil.rmtree(run.libraries)
    done = run.python("-c", "import torch")
    assert done.stderr == run.python("-c", "import torch", watched=False).stderr
    assert "No module named 'torch'" in done.stderr


def test_what_stands_beside_the_package_does_not_become_visible(run):
    script = """
import importlib.util
print(importlib.util.find_spec("neighbour"), importlib.util.find_spec("nanhunt"))
import torch, nanhunt
print(importlib.util.find_spec("neighbour"))
"""
    assert output_of(run.python("-c", script)) == "None None\nNone\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_reached(run, method):
    script = run.write(
        "script.py",
        f"""
import multiprocessing, torch
def work(queue): queue.put(torch.tensor)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    assert queue.get(timeout=1800) == "whole"
    worker.join()
""",
    )
    output_of(run.python(str(script)))
    # A forked worker has what its parent had; one that starts anew attaches again.
    assert run.attached() == ["whole"] * (1 if method == "fork" else 2)


def test_a_module_run_by_its_name_is_watched(run):
    run.write("libraries/training/__main__.py", "import torch; print(__name__)")
    assert output_of(run.python("-m", "training")) == "__main__\n"
    assert run.attached() == ["whole"]


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_python_is_not_reached_and_leaves_no_trace(run, option):
    run.python(option, "-c", "import sys; sys.path.append('libraries'); import torch")
    assert run.attached() == [] and run.log.read_text() == ""


def test_it_keeps_to_what_old_pythons_can_read():
    import ast

    ast.parse(BOOT.read_text(), feature_version=(3, 4))
