# SPDX-License-Identifier: Apache-2.0
"""What tests of runs behind a URL use: a bucket, the program and the door of nanhunt.store as processes."""
from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from hunting import cli

SETTINGS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1", "NANHUNT_PYTHON": sys.executable, "NANHUNT_UPLOAD_SECONDS": "20"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Bucket:
    def __init__(self, endpoint: str, name: str) -> None:
        import s3fs

        self.url = f"s3://{name}"
        self.name = name
        self.fs = s3fs.S3FileSystem(endpoint_url=endpoint, key="key", secret="secret", use_listings_cache=False,
                                    skip_instance_cache=True)

    def make(self) -> None:
        self.fs.mkdir(self.name)

    def names(self, below: str) -> list[str]:
        root = f"{self.name}/{below}/"
        return sorted(path[len(root):] for path in self.fs.find(root))

    def read(self, name: str) -> bytes:
        return self.fs.cat_file(f"{self.name}/{name}")

    def write(self, name: str, content: bytes) -> None:
        self.fs.pipe_file(f"{self.name}/{name}", content)


def nanhunt(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([cli(), *words], capture_output=True, text=True, timeout=timeout, check=False,
                          env={**os.environ})


def upload(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return store("upload", url, "--from", str(folder))


def store_environment() -> dict[str, str]:
    """Ours, with the package for a Python of its own."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "hooks" / "torch")}


def store(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nanhunt.store", *words], capture_output=True, text=True, timeout=120,
                          check=False, env=store_environment())


def made_tables(run: Path, out: Path) -> Path:
    from nanhunt.fleet import LocalEngine, make_tables

    engine = LocalEngine(1)
    try:
        make_tables(str(run), str(out), engine)
    finally:
        engine.close()
    return out
