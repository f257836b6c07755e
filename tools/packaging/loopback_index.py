# SPDX-License-Identifier: Apache-2.0
"""A package index on this machine's loopback, for the dry run of a release: twine uploads to it, pip takes from it."""
from __future__ import annotations

import email
import email.policy
import hashlib
import html
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_MOST_BYTES = 200_000_000
_FILE = re.compile(r"[A-Za-z0-9_.+-]+")


@dataclass
class Index:
    """What was uploaded: files by name, with the fields that came with each."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    fields: dict[str, dict[str, str]] = field(default_factory=dict)


def _parts(kind: str, body: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Name, file name or "", contents of each part of a form."""
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body, policy=email.policy.HTTP)
    for part in message.iter_parts():
        contents = part.get_payload(decode=True)
        if isinstance(contents, bytes):
            yield (str(part.get_param("name", "", "content-disposition")), part.get_filename() or "", contents)


def _handler(index: Index) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self, status: int, body: bytes = b"", kind: str = "text/html; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 < size <= _MOST_BYTES:
                return self._answer(413)
            body = self.rfile.read(size)
            given = {name: (file, contents)
                     for name, file, contents in _parts(self.headers.get("Content-Type", ""), body)}  # fmt: skip
            file, contents = given.get("content", ("", b""))
            said = given.get("sha256_digest", ("", b""))[1].decode()
            if not _FILE.fullmatch(file) or hashlib.sha256(contents).hexdigest() != said:
                return self._answer(400, b"no file, or not what its checksum says")
            if file in index.files:
                return self._answer(409, b"it is there already")
            index.fields[file] = {name: value.decode("utf-8", "replace") for name, (is_file, value) in given.items()
                                  if not is_file}  # fmt: skip
            index.files[file] = contents
            self._answer(200)

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if self.path == "/simple/nanhunt/":
                rows = [f'<a href="/files/{html.escape(file)}#sha256={hashlib.sha256(contents).hexdigest()}">'
                        f"{html.escape(file)}</a><br>" for file, contents in sorted(index.files.items())]  # fmt: skip
                self._answer(200, "\n".join(["<!DOCTYPE html><html><body>", *rows, "</body></html>"]).encode())
            elif self.path.startswith("/files/") and name in index.files:
                self._answer(200, index.files[name], "application/octet-stream")
            else:
                self._answer(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def loopback_index() -> Iterator[Index]:
    index = Index()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(index)) as server:
        index.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
