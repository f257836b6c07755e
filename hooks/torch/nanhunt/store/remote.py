# SPDX-License-Identifier: Apache-2.0
"""The remote side: a folder behind a URL, by fsspec, and what its errors mean for people."""
from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.S)
_VERSIONS = ("size", "ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}

# What a run holds; nothing else is ever copied. A name says where a file lies below the run, so none may lead upward.
_RANK, _ATTEMPT = r"rank-\d{5,10}", r"attempt-\d{1,10}"
SEGMENT = re.compile(r"\d{6,10}\.nht")
_FILE = rf"(?:run\.json|digest\.json|{SEGMENT.pattern}|captures/[A-Za-z0-9_][A-Za-z0-9._-]*)"
_IN_RUN = re.compile(rf"(?:(?:{_RANK}/)?{_ATTEMPT}/)?{_FILE}")
ATTEMPT = re.compile(rf"({_RANK})/({_ATTEMPT})/(.+)")


class RemoteError(RuntimeError):
    """A place that cannot be read or written: what, where, what to do next."""


def is_url(place: str) -> bool:
    return _URL.fullmatch(place) is not None


def belongs_to_run(name: str) -> bool:
    return _IN_RUN.fullmatch(name) is not None


def folder_name_of(url: str) -> str:
    """A name that people recognise, and that no other URL has."""
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rstrip("/").rsplit("/", 1)[-1])[:40].strip(".-") or "run"
    return f"{last}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def shown(url: str) -> str:
    """A URL without a password and what a query may hold."""
    return re.sub(r"\?.*", "", re.sub(r"(?<=://)[^/@\s]*@", "", url))


def words_of(error: BaseException) -> str:
    """One line, without what a URL or a header may hold of secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"(?<=://)[^/@\s]*@", "", text)
    text = re.sub(r"(?i)\b(sig|signature|[\w-]*token|[\w-]*key|[\w-]*secret|[\w-]*credential|password|bearer)([=:\s]+)"
                  r"[^\s&,;'\"]+", r"\1\2...", text)
    return f"{type(error).__name__}: {text}"[:300] if type(error).__name__ not in text else text[:300]


def is_denied(error: BaseException) -> bool:
    """Whether trying again soon helps nobody: no permission, no such bucket."""
    while error is not None:
        if isinstance(error, (PermissionError, FileNotFoundError)) or type(error).__name__ == "NoCredentialsError":
            return True
        error = error.__cause__  # type: ignore[assignment]
    return False


class NoRunError(RemoteError):
    """Nothing of a run is there, perhaps not yet."""


class Remote:
    """A run's folder behind a URL. Names are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme = url.split("://", 1)[0].lower()
        extra = _EXTRAS.get(scheme)
        how = f"pip install 'nanhunt[{extra}]'" if extra else f"the package by which fsspec opens {scheme}://"
        try:
            import fsspec
        except ImportError as error:
            raise RemoteError(f"{shown(url)}: a URL needs fsspec and what opens {scheme}://: {how}") from error
        try:
            self.fs: Any
            # No listing is kept: other machines add to what is there.
            self.fs, self.root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise RemoteError(f"{shown(url)}: {words_of(error)}. It needs {how}") from error
        except Exception as error:
            raise RemoteError(f"{shown(url)}: {words_of(error)}. Check its spelling.") from error
        self.root = str(self.root).rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def find(self, below: str = "") -> dict[str, dict[str, Any]]:
        """Every object below, by its name, with its size and what its version is known by. {}: none."""
        start = self.path(below)
        try:
            found = self.fs.find(start, detail=True)
        except FileNotFoundError:
            return {}
        names: dict[str, dict[str, Any]] = {}
        for path, facts in found.items():
            where = str(path)
            name = where[len(self.root) + 1:] if where.startswith(self.root + "/") else ""
            if name or where == self.root:  # the URL of a single file
                names[name] = facts
        return names

    def get(self, name: str, to: Path) -> None:
        self.fs.get_file(self.path(name), str(to))

    def read(self, name: str) -> bytes:
        content: bytes = self.fs.cat_file(self.path(name))
        return content

    def read_many(self, names: list[str]) -> dict[str, bytes | Exception]:
        """By name: the content, or why it could not be read."""
        if not names:
            return {}
        by_path = {self.path(name): name for name in names}
        got = self.fs.cat(list(by_path), on_error="return")
        return {by_path[path]: content for path, content in got.items() if path in by_path}

    def put(self, name: str, content: bytes) -> None:
        self._parents(name)
        self.fs.pipe_file(self.path(name), content)

    def put_new(self, name: str, content: bytes) -> bool:
        """False: somebody's object of this name is there already."""
        self._parents(name)
        try:
            self.fs.pipe_file(self.path(name), content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if "PreconditionFailed" in str(error) or "pre-conditions" in str(error) or "Precondition" in repr(error):
                return False
            raise
        return True

    def delete(self, name: str) -> None:
        self.fs.rm_file(self.path(name))

    def _parents(self, name: str) -> None:
        if not getattr(self.fs, "async_impl", False):  # a file system with folders
            self.fs.makedirs(self.fs._parent(self.path(name)), exist_ok=True)


def version_of(facts: dict[str, Any]) -> str:
    """What differs once an object was written anew."""
    return "|".join("" if facts.get(key) is None else str(facts[key]) for key in _VERSIONS)
