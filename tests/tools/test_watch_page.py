# SPDX-License-Identifier: Apache-2.0
"""`nanhunt watch` on a terminal: a page that is drawn in one place, as wide as the window, and ended by Ctrl-C."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest


@pytest.fixture
def run(binaries, tmp_path):
    """A run with a fault; its last segment is cut short, so it has no end and is watched on."""
    folder = tmp_path / "run"
    words = [binaries / "nanhunt", "train", "log-zero", "--level", "ops", "--no-verify", "--out", folder]
    subprocess.run(words, capture_output=True, check=True, timeout=1800)
    (last,) = sorted(folder.glob("rank-*/attempt-*/*.nht"))[-1:]
    os.truncate(last, last.stat().st_size - 30)
    return folder


class Terminal:
    """`nanhunt watch` on a terminal of a size."""

    def __init__(self, program, *words, columns=60, rows=20, **changes):
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM") and not k.startswith("NANHUNT")}
        environment = kept | {"TERM": "xterm"} | changes
        command = [program, "watch", "--every", "0.05", *words]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, reached):
        end = time.monotonic() + 600
        while not reached(self.text):
            assert time.monotonic() < end, self.text
            if select.select([self.master], [], [], 1)[0]:
                self.text += os.read(self.master, 65536).decode()
        return self.text

    def end(self):
        os.write(self.master, b"\x03")
        return self.process.wait(600)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(binaries):
    opened = []

    def open_terminal(*words, **options):
        opened.append(Terminal(binaries / "nanhunt", *words, **options))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def lines_of(text):
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return [line.strip("\r") for line in plain.split("\n")]


def test_pages_are_drawn_over_each_other_and_ctrl_c_ends_with_the_status_so_far(terminal, run):
    watch = terminal(run)
    text = watch.read_until(lambda text: text.count("FAULT") >= 3)
    pages = re.split(r"\x1b\[J", text)
    height = pages[0].count("\n")
    assert height > 2 and pages[1].startswith(f"\r\x1b[{height}A")
    assert "\x1b[31mFAULT\x1b[0m" in text and "log of 0" in text
    assert watch.end() == 1


def test_no_line_is_wider_than_the_window_and_no_page_higher(terminal, run):
    watch = terminal(run, columns=30, rows=4)
    text = watch.read_until(lambda text: text.count("\x1b[J") >= 2)
    assert max(len(line) for line in lines_of(text)) == 30
    assert text.split("\x1b[J")[0].count("\n") == 3
    watch.resize(50, 20)
    watch.read_until(lambda text: max(len(line) for line in lines_of(text)) > 30)
    assert watch.end() == 1


def test_no_color_means_none(terminal, run):
    watch = terminal(run, NO_COLOR="1")
    text = watch.read_until(lambda text: text.count("\x1b[J") >= 2)
    assert "\x1b[31m" not in text
    assert watch.end() == 1


def test_a_dumb_terminal_gets_lines(terminal, run):
    watch = terminal(run, TERM="dumb", columns=400)
    text = watch.read_until(lambda text: "FAULT" in text)
    assert "\x1b" not in text
    assert watch.end() == 1
