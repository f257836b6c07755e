# SPDX-License-Identifier: Apache-2.0
"""Tensors in what a program gives and gets: nested containers and dataclasses."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def tensors_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in nested containers and dataclasses, with a path: "0", "images", "out.logits"."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth > 6:
        return
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        for name, item in zip(names, value):
            yield from tensors_in(item, f"{path}.{name}" if path else str(name), depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name, None)
            yield from tensors_in(item, f"{path}.{field.name}" if path else field.name, depth + 1)


def given_at(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    """An argument of a call; None: it was not given."""
    return args[place] if len(args) > place else kwargs.get(name)


def tensors_given(args: tuple[Any, ...], kwargs: dict[str, Any], place: int,
                  name: str) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...], dict[str, Any]]:
    """The tensors of an argument that is one or a sequence of them, and the arguments to use instead: what can be read
    once only is read."""
    given = given_at(args, kwargs, place, name)
    if isinstance(given, torch.Tensor):
        return (given,), args, kwargs
    if hasattr(given, "__next__"):
        given = tuple(given)
        if len(args) > place:
            args = (*args[:place], given, *args[place + 1:])
        else:
            kwargs = {**kwargs, name: given}
    several = given if isinstance(given, Iterable) else ()
    return tuple(t for t in several if isinstance(t, torch.Tensor)), args, kwargs
