# SPDX-License-Identifier: Apache-2.0
"""`python -m nanhunt.metrics --otlp URL --prometheus FILE|PORT`: offers what comes on stdin, lines of `nanhunt watch
--json`, until stdin ends. Prints "ready" once all is set up, and nothing else; talk is on stderr.
"""
from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Callable

from nanhunt.metrics.samples import Latest, samples_of
from nanhunt.metrics.targets import SECONDS, NotPossible, offer_to_opentelemetry, offer_to_prometheus, say


def _follow(latest: Latest, offer: Callable[[], None]) -> threading.Thread:
    """Whatever a target takes, stdin is read on."""

    def work() -> None:
        for _ in latest.numbers():
            try:
                offer()
            except Exception as error:
                say(f"metrics: {type(error).__name__}: {error}")
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _read_lines(latest: Latest) -> None:
    for line in sys.stdin.buffer:
        try:
            read = json.loads(line)
            if isinstance(read, dict):
                latest.put(samples_of(read))
        except (ValueError, TypeError, AttributeError, KeyError):
            continue  # not a line of ours


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m nanhunt.metrics", allow_abbrev=False)
    parser.add_argument("--otlp", metavar="URL")
    parser.add_argument("--prometheus", metavar="FILE|[HOST:]PORT")
    asked = parser.parse_args(words)
    latest = Latest()
    offers = []
    try:
        if asked.prometheus:
            offers.append(offer_to_prometheus(asked.prometheus, latest))
        if asked.otlp:
            offers.append(offer_to_opentelemetry(asked.otlp, latest))
    except NotPossible as error:
        say(str(error))
        return 2
    threads = [_follow(latest, offer) for offer in offers if offer is not None]
    print("ready", flush=True)
    _read_lines(latest)
    latest.end()
    last = time.monotonic() + SECONDS + 1  # the last numbers go out as well, if that takes no longer
    for thread in threads:
        thread.join(max(0.0, last - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
