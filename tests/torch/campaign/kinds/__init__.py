# SPDX-License-Identifier: Apache-2.0
"""Kinds of programs, a file each, with FAULTS and HEALTHY by name. A file that is there is a kind."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from score import Expected
from training import Training

Name = tuple[str, str]  # of the kind, of what it plants


@dataclass(frozen=True)
class Fault:
    program: type[Training]
    expected: Expected
    alone: bool = False  # in a process of its own, by `nanhunt run`


def _all(what: str) -> dict[Name, Any]:
    kinds = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = {kind: getattr(importlib.import_module(f"{__name__}.{kind}"), what, {}) for kind in kinds}
    return {(kind, name): one for kind, its in found.items() for name, one in its.items()}


def all_faults() -> dict[Name, Fault]:
    return _all("FAULTS")


def all_healthy() -> dict[Name, type[Training]]:
    """What looks like a fault and is none."""
    return _all("HEALTHY")
