# SPDX-License-Identifier: Apache-2.0
"""Objects of the program's, by their class."""
from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any


def instances_of(classes: Iterable[type]) -> list[Any]:
    """Those of the classes and of what is derived from them. The garbage collector is asked what refers to a class, as
    each object does: who looked at all objects would hold tuples that other threads are still making, which makes
    those fail."""
    kinds: set[type] = set()
    to_do = list(classes)
    while to_do:
        one = to_do.pop()
        if one not in kinds:
            kinds.add(one)
            to_do += type.__subclasses__(one)
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]
