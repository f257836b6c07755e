# SPDX-License-Identifier: Apache-2.0
"""A function of the program's: `log(numbers, step)`. An alert is a call with the text as `nanhunt/fault`."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Function:
    def __init__(self, function: Callable[[dict[str, Any], int], object]) -> None:
        self._function = function

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._function(numbers, step)

    def alert(self, headline: str, text: str, step: int) -> None:
        self._function({"nanhunt/fault": text}, step)


def take(given: Any) -> Function | None:
    return Function(given) if callable(given) else None
