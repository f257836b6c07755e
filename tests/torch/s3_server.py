# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a real S3 server on loopback, and a bucket of it for each test."""
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from stores import SETTINGS, Bucket, free_port


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto", reason="moto, the S3 server, is not installed")
    pytest.importorskip("flask_cors", reason="flask-cors, which moto's server needs, is not installed")
    url = f"http://127.0.0.1:{free_port()}"
    log = (tmp_path_factory.mktemp("s3") / "log").open("w")
    words = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", url.rsplit(":")[-1]]
    process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urlopen(url, timeout=5).close()
                break
            assert process.poll() is None, Path(log.name).read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def settings(tmp_path, monkeypatch) -> dict[str, str]:
    """The environment of those who use a store: credentials, and a cache of this test's own (with the tap in it)."""
    known = Path(os.environ.get("NANHUNT_CACHE") or Path.home() / ".cache" / "nanhunt")
    (tmp_path / "cache").mkdir()
    for tap in known.glob("*.so") if known.is_dir() else ():
        (tmp_path / "cache" / tap.name).symlink_to(tap)
    given = {**SETTINGS, "NANHUNT_CACHE": str(tmp_path / "cache")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def no_bucket(server, settings, monkeypatch) -> Bucket:
    """One that nobody has made yet."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    return Bucket(server, f"runs-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def bucket(no_bucket) -> Bucket:
    no_bucket.make()
    return no_bucket
