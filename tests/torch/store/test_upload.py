# SPDX-License-Identifier: Apache-2.0
"""A run whose folder is a URL: recorded here, copied there while it grows, and training never waits."""
from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ready_python
from hunting import cli
from stores import nanhunt, store, upload

pytestmark = pytest.mark.usefixtures("library")
ATTEMPT = "rank-00000/attempt-0"
PROGRAM = """
import os, sys, time
sys.path.insert(0, {package!r})
import torch
watched = len(sys.argv) > 1
if watched:
    import nanhunt
    nanhunt.watch(out=sys.argv[1], quiet=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).pow(2).mean()
    if step == 3:
        loss = loss / 0.0
    loss.backward()
    optimizer.step()
    if step == {kill_at}:
        os.kill(os.getpid(), 9)
print([p.tolist() for p in model.parameters()])
"""


@pytest.fixture
def program(tmp_path):
    def write(kill_at: int = -1) -> str:
        package = str(Path(__file__).parents[3] / "hooks" / "torch")
        (tmp_path / "program.py").write_text(PROGRAM.format(package=package, kill_at=kill_at))
        return str(tmp_path / "program.py")

    return write


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ready_python.command(), *words], capture_output=True, text=True, timeout=180, check=False)


def wait_until(true, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.1)


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "uploads").glob("*/rank-*/attempt-*/*.nht"))


# A run that ends.
def test_a_run_that_was_trained_into_a_url_is_there_and_its_folder_here_is_gone(bucket, tmp_path):
    done = nanhunt("train", "adam-eps", "--steps", "6", "--out", f"{bucket.url}/eps")
    assert done.returncode == 0, done.stderr
    assert f"nanhunt report {bucket.url}/eps" in done.stdout
    assert "run.json" in " ".join(bucket.names("eps"))
    assert not kept(tmp_path / "cache")
    assert nanhunt("check", f"{bucket.url}/eps").returncode == 1


def test_a_command_that_is_run_into_a_url_keeps_its_status_and_is_judged(bucket, program):
    done = nanhunt("run", "--out", f"{bucket.url}/run", "--", sys.executable, "-c",
                   f"exec(open({program()!r}).read()); sys.exit(7)")
    assert done.returncode == 7
    assert f"report: `nanhunt report {bucket.url}/run`" in done.stderr
    assert "cache" not in done.stderr
    assert nanhunt("check", f"{bucket.url}/run").returncode == 1


def test_a_program_that_watches_itself_into_a_url_trains_as_alone(bucket, program, tmp_path):
    watched, alone = run_python(program(), f"{bucket.url}/run"), run_python(program())
    assert watched.stdout == alone.stdout
    assert watched.stderr == alone.stderr == ""
    assert nanhunt("check", f"{bucket.url}/run").returncode == 1
    assert not kept(tmp_path / "cache")


def test_what_a_killed_program_had_recorded_is_copied(bucket, program):
    assert run_python(program(kill_at=4), f"{bucket.url}/run").returncode == -signal.SIGKILL
    wait_until(lambda: f"{ATTEMPT}/000000.nht" in bucket.names("run"))
    assert nanhunt("check", f"{bucket.url}/run").returncode == 1


def test_a_program_that_waits_for_any_child_finds_none_of_ours(bucket, tmp_path):
    text = PROGRAM.format(package=str(Path(__file__).parents[3] / "hooks" / "torch"), kill_at=-1)
    (tmp_path / "waits.py").write_text(text + """
try:
    os.wait()
except ChildProcessError:
    print("no child")
""")
    assert "no child" in run_python(str(tmp_path / "waits.py"), f"{bucket.url}/run").stdout


def test_a_closed_watch_is_still_asked_for_its_report(bucket, program, tmp_path):
    text = Path(program()).read_text().replace("nanhunt.watch(", "watch = nanhunt.watch(")
    (tmp_path / "asks.py").write_text(text + "watch.close()\ntime.sleep(4)\nprint(watch.verdict)\n")
    assert run_python(str(tmp_path / "asks.py"), f"{bucket.url}/run").stdout.splitlines()[-1] == "fault"
    assert not kept(tmp_path / "cache")


def test_what_a_forked_child_records_after_its_parent_has_ended_is_copied(bucket, program, tmp_path):
    forks = "child = watched and os.fork() == 0\ntime.sleep(6 * child)"
    text = Path(program()).read_text().replace("torch.manual_seed(0)", forks)
    (tmp_path / "forks.py").write_text(text)
    run_python(str(tmp_path / "forks.py"), f"{bucket.url}/run")
    wait_until(lambda: "rank-00000/attempt-1/000000.nht" in bucket.names("run"), 60)


def test_a_relative_cache_stays_where_it_was_when_the_program_goes_elsewhere(bucket, program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANHUNT_CACHE", "cache")
    shutil.copytree(tmp_path / "cache", tmp_path / "else" / "cache", symlinks=True)  # the tap: it is not compiled anew
    moves = Path(program()).read_text().replace("torch.manual_seed(0)", f"os.chdir({str(tmp_path / 'else')!r})")
    (tmp_path / "moves.py").write_text(moves)
    run_python(str(tmp_path / "moves.py"), f"{bucket.url}/run")
    assert nanhunt("check", f"{bucket.url}/run").returncode == 1


def test_a_fault_is_said_with_the_url_as_it_was_given(bucket, program, tmp_path):
    (tmp_path / "loud.py").write_text(Path(program()).read_text().replace(", quiet=True", ""))
    assert f"nanhunt report {bucket.url}/run" in run_python(str(tmp_path / "loud.py"), f"{bucket.url}/run").stderr


@pytest.mark.parametrize("url", ["ftp://user:hunter2@127.0.0.1:9/run", "http://127.0.0.1:9/run?X-Amz-Signature=hunter2"])
def test_secrets_of_a_url_are_not_printed(url, settings):
    assert "hunter2" not in nanhunt("check", url).stderr


# While it grows.
def uploader(folder, bucket):
    from nanhunt.store.remote import Remote
    from nanhunt.store.upload import Uploader

    return Uploader(folder, Remote(f"{bucket.url}/run"))


@pytest.fixture
def growing(tmp_path) -> Path:
    """An attempt with two closed segments and an open one."""
    folder = tmp_path / "growing" / ATTEMPT
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    for number in range(3):
        (folder / f"00000{number}.nht").write_bytes(b"%d" % number)
    return folder


def test_a_closed_segment_is_copied_at_once_and_the_open_one_with_a_digest(bucket, growing):
    copies = uploader(growing.parents[1], bucket)
    copies.copy_what_is_due()
    assert bucket.names(f"run/{ATTEMPT}") == ["000000.nht", "000001.nht", "run.json"]
    (growing / "digest.json").write_text('{"attempt":0}')
    copies.copy_what_is_due()
    assert bucket.names(f"run/{ATTEMPT}") == ["000000.nht", "000001.nht", "000002.nht", "digest.json", "run.json"]


def test_a_segment_that_grew_is_copied_anew_and_no_other(bucket, growing):
    copies = uploader(growing.parents[1], bucket)
    assert copies.finish(10).copied == 4
    with (growing / "000002.nht").open("ab") as file:
        file.write(b"more")
    assert copies.finish(10).copied == 5
    assert bucket.read(f"run/{ATTEMPT}/000002.nht") == b"2more"


def test_segments_that_the_recorder_gave_up_are_given_up_there_too(bucket, growing):
    copies = uploader(growing.parents[1], bucket)
    copies.copy_what_is_due()
    (growing / "000001.nht").rename(growing / "000000.nht")  # as retention rewrites two into one
    copies.copy_what_is_due()
    assert bucket.names(f"run/{ATTEMPT}") == ["000000.nht", "run.json"]
    assert bucket.read(f"run/{ATTEMPT}/000000.nht") == b"1"


def test_links_and_names_that_are_not_of_a_run_are_not_copied(bucket, growing, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (growing / "captures").mkdir()
    (growing / "captures" / "link").symlink_to(tmp_path / "secret")
    (growing / "notes.txt").write_text("secret")
    uploader(growing.parents[1], bucket).finish(10)
    assert len(bucket.names("run")) == 4


def test_a_first_fault_is_there_while_the_run_goes_on(bucket, program, tmp_path):
    text = Path(program()).read_text().replace("if step == -1:", "if step == 5: time.sleep(25)\n    if step == -1:")
    (tmp_path / "slow.py").write_text(text)
    process = subprocess.Popen([sys.executable, str(tmp_path / "slow.py"), f"{bucket.url}/run"], stdout=subprocess.PIPE)
    try:
        wait_until(lambda: f"{ATTEMPT}/digest.json" in bucket.names("run")
                   and nanhunt("check", f"{bucket.url}/run").returncode == 1, 25)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# Nothing of others is overwritten.
def test_a_second_run_into_the_same_url_is_an_attempt_of_its_own(bucket, eps_run):
    url = f"{bucket.url}/eps"
    assert nanhunt("train", "adam-eps", "--steps", "6", "--out", url).returncode == 0
    before = bucket.read(f"eps/{ATTEMPT}/000000.nht")
    assert nanhunt("train", "adam-eps", "--steps", "5", "--out", url).returncode == 0
    assert bucket.read(f"eps/{ATTEMPT}/000000.nht") == before
    assert "rank-00000/attempt-1/run.json" in bucket.names("eps")
    done = nanhunt("info", url)
    assert "5 finished" in done.stdout and "6 finished" in done.stdout


def test_a_digest_says_the_number_that_its_attempt_got(bucket, growing, tmp_path):
    (growing / "digest.json").write_text('{"attempt":0,"rank":0}')
    uploader(growing.parents[1], bucket).finish(10)
    (growing / "run.json").write_text('{"other": 1}')
    uploader(growing.parents[1], bucket).finish(10)
    assert json.loads(bucket.read("run/rank-00000/attempt-1/digest.json")) == {"attempt": 1, "rank": 0}


def test_what_was_copied_in_part_goes_on_where_it_was(bucket, growing):
    first = uploader(growing.parents[1], bucket)
    first.copy_what_is_due()
    assert uploader(growing.parents[1], bucket).finish(10).left == []
    assert {name.split("/")[1] for name in bucket.names("run")} == {"attempt-0"}


# A place that cannot be written.
def test_what_cannot_be_copied_is_kept_and_said_and_copied_when_asked_again(no_bucket, program, tmp_path):
    done = nanhunt("run", "--out", f"{no_bucket.url}/run", "--", *ready_python.command(), program())
    assert done.returncode == 0
    assert "could not be copied" in done.stderr and "tries again" in done.stderr
    folder = kept(tmp_path / "cache")[0].parents[2]
    assert nanhunt("check", str(folder)).returncode == 1
    no_bucket.make()
    assert json.loads(store("upload", f"{no_bucket.url}/run", "--from", str(folder)).stdout)["left"] == 0
    assert nanhunt("check", f"{no_bucket.url}/run").returncode == 1


def test_a_program_that_watches_itself_says_at_its_end_what_was_not_copied(no_bucket, program, tmp_path):
    loud = Path(program()).read_text().replace(", quiet=True", "")
    (tmp_path / "loud.py").write_text(loud)
    done = run_python(str(tmp_path / "loud.py"), f"{no_bucket.url}/run")
    assert done.returncode == 0
    assert "files could not be copied" in done.stderr
    assert kept(tmp_path / "cache")


class Denies:
    """A server that answers every request with 403."""

    def __init__(self) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        class Handler(BaseHTTPRequestHandler):
            def _deny(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
                self.send_response(403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _deny

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def test_a_bucket_that_denies_is_a_clear_word_and_the_run_is_kept(settings, program, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    denies = Denies()
    monkeypatch.setenv("AWS_ENDPOINT_URL", denies.url)
    try:
        done = nanhunt("run", "--out", "s3://bucket/run", "--", *ready_python.command(), program())
        read = nanhunt("check", "s3://bucket/run")
    finally:
        denies.server.shutdown()
        denies.server.server_close()
    assert done.returncode == 0
    assert "Access Denied" in done.stderr
    assert kept(tmp_path / "cache")
    assert read.returncode == 3 and "permission" in read.stderr


def test_a_server_that_never_answers_does_not_hold_up_training(settings, program, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    timed = Path(program()).read_text() + "print('trained', time.monotonic() - began)"
    (tmp_path / "timed.py").write_text(timed.replace("torch.manual_seed(0)", "began = time.monotonic()"))
    monkeypatch.setenv("NANHUNT_UPLOAD_SECONDS", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = subprocess.Popen([sys.executable, str(tmp_path / "timed.py"), "s3://bucket/run"], text=True,
                                   stdout=subprocess.PIPE)
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1].startswith("trained"), lines
        process.wait(60)
        process.stdout.close()
    assert kept(tmp_path / "cache")
    end_uploads(tmp_path / "cache")


def test_a_server_that_never_answers_does_not_hold_up_the_end_of_a_command(settings, program, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setenv("NANHUNT_UPLOAD_SECONDS", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = nanhunt("run", "--out", "s3://bucket/run", "--", *ready_python.command(), program(),
                       timeout=60)
    assert done.returncode == 0
    assert "no answer came in time" in done.stderr and "tries again" in done.stderr
    assert kept(tmp_path / "cache")


def uploads_of(cache: Path) -> list[int]:
    """What goes on in the background by itself."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"nanhunt.store" in (process / "cmdline").read_bytes()
            if ours and f"NANHUNT_CACHE={cache}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def end_uploads(cache: Path) -> None:
    for process in uploads_of(cache):
        os.kill(process, signal.SIGKILL)


def test_ctrl_c_during_the_last_copy_ends_the_command_and_not_the_copy(settings, program, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        words = [cli(), "run", "--out", "s3://bucket/run", "--", sys.executable, program()]
        process = subprocess.Popen(words, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while "copying what is left" not in (line := process.stderr.readline()):
            assert line, "it ended before the last copy"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
        process.stderr.close()
        assert uploads_of(tmp_path / "cache")
        assert kept(tmp_path / "cache")
        end_uploads(tmp_path / "cache")


def test_where_a_url_cannot_be_opened_the_command_is_run_all_the_same(tmp_path, settings, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = nanhunt("run", "--out", "zz://host/run", "--", *ready_python.command(), program())
    assert done.returncode == 0
    assert "Protocol not known" in done.stderr and "in a folder here instead" in done.stderr
    assert (tmp_path / "nanhunt-run" / ATTEMPT).exists()


def test_a_program_is_told_at_once_of_a_url_that_cannot_be_opened(settings, program):
    done = run_python(program(), "zz://host/run")
    assert done.returncode == 1
    assert "Protocol not known" in done.stderr


def test_a_failing_file_is_tried_again_later_each_time(bucket, growing, monkeypatch):
    copies = uploader(growing.parents[1], bucket)
    put, tries = copies.remote.put, []

    def flaky(name, content):
        if name.endswith("000001.nht") and len(tries) < 3:
            tries.append(time.monotonic())
            raise OSError("a storm")
        put(name, content)

    monkeypatch.setattr(copies.remote, "put", flaky)
    sent = copies.finish(30)
    assert sent.left == []
    assert len(tries) == 3
    assert tries[2] - tries[1] > tries[1] - tries[0]


def test_an_upload_by_hand_of_what_is_no_folder_is_a_clear_word(bucket, tmp_path):
    done = upload(f"{bucket.url}/run", tmp_path / "nothing")
    assert done.returncode == 3
    assert "is no folder" in json.loads(done.stdout)["error"]
