# SPDX-License-Identifier: Apache-2.0
"""Which Python files import which of ours, and where that leads back to where it began."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

# Where an import looks besides the importing file's own folder: what tests put on sys.path.
ROOTS = ("hooks/torch", "tools", "tests/structure", "tests/gpu", "tests/torch",
         "tests/torch/cases", "tests/torch/device", "tests/torch/neutral")  # fmt: skip


# Folders whose files are imported by their bare names within one run of tests; the package's tests run on their own.
BARE = ("tests/gpu", "tests/structure", "tests/tools", "tools")


def of_one_name(paths: Iterable[str]) -> list[list[str]]:
    """Helpers that take each other's place: sys.modules has one module of a name."""
    by_name: dict[str, list[str]] = {}
    for path in sorted(paths):
        bare = PurePosixPath(path)
        if any(path.startswith(f"{folder}/") for folder in BARE) and bare.name not in ("__init__.py", "conftest.py"):
            by_name.setdefault(bare.name, []).append(path)
    return [same for same in by_name.values() if len(same) > 1]


def imports_of(path: str, text: str, exists, *, types: bool = True) -> set[str]:
    """Files of ours that this one imports, also inside of functions; with `types` those for types alone too."""
    found: set[str] = set()
    for node in _imports(ast.parse(text), types):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _file(path, alias.name.split("."), exists)
            continue
        module = node.module.split(".") if node.module else []
        if node.level:
            package = list(PurePosixPath(path).parts[: -node.level])
            base = "/".join([*package, *module])
            found |= _members(base, node.names, exists)
        else:
            for root in _roots(path):
                members = _members("/".join([root, *module] if root else module), node.names, exists)
                if members:
                    found |= members
                    break
    return found - {path}


def _imports(tree: ast.AST, types: bool) -> Iterable[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            for other in node.orelse:
                yield from _imports(ast.Module([other], []), types)
        else:
            yield from _imports(node, types)


def _roots(path: str) -> tuple[str, ...]:
    return (PurePosixPath(path).parent.as_posix(), *ROOTS)


def _at(base: str, exists) -> str | None:
    return next((name for name in (f"{base}.py", f"{base}/__init__.py") if exists(name)), None)


def _file(path: str, module: list[str], exists) -> set[str]:
    for root in _roots(path):
        name = _at("/".join([root, *module]), exists)
        if name is not None:
            return {name}
    return set()


def _members(base: str, names: list[ast.alias], exists) -> set[str]:
    """`from base import names`: a name is a module of its own, or stands in `base`."""
    if _at(base, exists) is None and not any(exists(f"{base}/{alias.name}.py") for alias in names):
        return set()
    return {name for alias in names for name in [_at(f"{base}/{alias.name}", exists) or _at(base, exists)] if name}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Files that reach each other, each circle sorted (Tarjan's strongly connected components of more than one)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        open_.append(name)
        for other in sorted(graph.get(name, ())):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in open_:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            circle = [open_.pop()]
            while circle[-1] != name:
                circle.append(open_.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return sorted(found)
