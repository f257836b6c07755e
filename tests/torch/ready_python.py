# SPDX-License-Identifier: Apache-2.0
"""`command()` is a Python that has imported torch already: to import it takes longer than a script that trains little.

A process that has imported torch waits, and is forked for each script with the environment, the folder, the words and
the open files of who asked. The start-up file that `nanhunt run` puts on PYTHONPATH runs in the fork as it would in a
Python where a .pth file imports torch. Scripts end as they would alone: by themselves, with their own exit handlers.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path

HERE = str(Path(__file__).resolve())
_at: str | None = None
_starting = threading.Lock()


def command() -> list[str]:
    """Followed by a script, -c and its text, or -m and a module, and its words. The process behind it ends with the
    one that asks."""
    global _at
    with _starting:
        _at = _at or _start()
    return [sys.executable, "-I", "-S", HERE, _at]


def _start() -> str:
    import subprocess
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="ready")
    at = f"{folder.name}/socket"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NANHUNT", "PYTHONPATH"))}
    process = subprocess.Popen([sys.executable, HERE, "--serve", at], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env={**kept, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.stdin.close()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return at


def _ask(at: str, words: list[str]) -> int:
    asked = json.dumps({"environment": dict(os.environ), "folder": str(Path.cwd()), "words": words}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(at)
        socket.send_fds(line, [len(asked).to_bytes(8, "big")], [0, 1, 2])
        line.sendall(asked)
        answer = line.recv(16)
    return int(answer)


def _receive(line: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = line.recv(size - len(got))
        if not part:
            raise EOFError
        got += part
    return got


def _serve(at: str) -> list[str]:
    """Returns in every fork, with the words of its script."""
    import torch  # noqa: F401
    import torch._dynamo  # noqa: F401 - optimizers import it at their first step

    gc.collect()
    gc.freeze()  # a fork that ends would copy the pages of all that was imported, to collect nothing: most of its time
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(at)
    listening.listen(16)
    print("ready", flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    waiting.register(listening, selectors.EVENT_READ)
    while True:
        if any(key.fileobj is sys.stdin for key, _ in waiting.select()):
            os._exit(0)  # whoever asked is gone
        line, _ = listening.accept()
        if os.fork() != 0:
            line.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        waiting.close()
        listening.close()
        size, files, _, _ = socket.recv_fds(line, 8, 3)
        asked = json.loads(_receive(line, int.from_bytes(size, "big")))
        child = os.fork()
        if child != 0:
            _, status = os.waitpid(child, 0)
            line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        line.close()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        _heed_signals()
        return asked["words"]


def _heed_signals() -> None:
    """As a program that a terminal starts: tests that run in the background (nohup, `&`) have these ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _start_up() -> None:
    """What `site` would have imported first, where PYTHONPATH has it."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = folders
    if any(Path(folder, "sitecustomize.py").exists() for folder in folders):
        sys.modules.pop("sitecustomize", None)
        import sitecustomize  # noqa: F401


if __name__ == "__main__":
    if sys.argv[1] != "--serve":
        status = _ask(sys.argv[1], sys.argv[2:])
        if status < 0:
            os.kill(os.getpid(), -status)
        sys.exit(status)
    sys.argv = _serve(sys.argv[2])
    if sys.argv[0] == "-m":
        import runpy

        sys.path[0] = str(Path.cwd())
        _start_up()
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif sys.argv[0] == "-c":
        sys.path[0] = ""
        _start_up()
        del __file__
        exec(compile(sys.argv.pop(1), "<string>", "exec"), globals())
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        _start_up()
        __file__ = sys.argv[0]
        exec(compile(Path(__file__).read_bytes(), __file__, "exec"), globals())
