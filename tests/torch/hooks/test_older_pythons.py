# SPDX-License-Identifier: Apache-2.0
"""What Python does with a traceback changes with its version: frames of nanhunt's are taken off it in each that is
there. No PyTorch is needed for that."""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FRAMES = Path(__file__).resolve().parents[3] / "hooks/torch/nanhunt/_hooks/frames.py"
PYTHONS = [sys.executable, *(f"python3.{minor}" for minor in range(9, 14))]

# Calls go through two patches, whose code is in a file of the package.
PROGRAM = """
import gc, importlib.util, sys, traceback, weakref
spec = importlib.util.spec_from_file_location("frames", sys.argv[1])
frames = importlib.util.module_from_spec(spec)
spec.loader.exec_module(frames)
PATCH = '''
def patched(call):
    try: return call()
    except BaseException as error:
        {take_off}
        raise
'''
class Raised(Exception): pass
def refuse(): raise Raised
def resume():
    yield through(refuse)
def through(call): return patched(lambda: patched(call))
def names_of(call):
    try: call()
    except BaseException as error: return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]
def ending(call):
    try: call()
    except BaseException as error: return weakref.ref(error)
for take_off in ("frames.take_frames_off(error)", "pass"):
    exec(compile(PATCH.format(take_off=take_off), sys.argv[1].replace("frames.py", "patch.py"), "exec"))
    print(names_of(lambda: through(refuse)), names_of(lambda: next(resume())), names_of(lambda: patched(abs)))
    try: raise KeyError
    except KeyError:
        names_of(lambda: through(refuse))
        print(sys.exc_info()[0])  # what was handled before still is
    print(sys.exc_info()[0])
    gone = [ending(lambda: through(refuse)) for _ in range(100)]
    gc.collect()
    print(sum(reference() is not None for reference in gone))
"""


@pytest.mark.parametrize("python", PYTHONS, ids=["this", *PYTHONS[1:]])
def test_a_traceback_has_no_frame_of_a_patch_and_is_kept_by_nobody(tmp_path, python):
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"there is no {Path(python).name} here")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    # Given patches that take their frames off what a call through them raises, and ones that do not,
    done = subprocess.run([python, script, FRAMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken_off, left = done.stdout.splitlines()[:4], done.stdout.splitlines()[4:]
    # then the program sees its own alone, in a generator and where C raised as well; what it handles stays, and no
    # exception outlives its handler.
    rest = ["<class 'KeyError'>", "None", "0"]
    own = ["<lambda>", "through", "<lambda>", "refuse"]
    in_generator = ["<lambda>", "resume", *own[1:]]
    assert taken_off == [f"{own} {in_generator} ['<lambda>']", *rest]
    # The test would see them.
    assert "patched" in left[0] and left[1:] == rest
