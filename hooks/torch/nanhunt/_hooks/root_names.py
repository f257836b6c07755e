# SPDX-License-Identifier: Apache-2.0
"""What root modules are called: as watch() named them, or by their place in the model that they are part of."""
from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._modes import modes_aside
from nanhunt._names import first_parameter, plain_module, plain_path

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.places import Places

TRANSPARENT = ("DistributedDataParallel", "DataParallel")
LOOK_EVERY = 8  # steps: whether a root has other parameters
WRAPPERS = (*TRANSPARENT, "OptimizedModule")


def name_root(session: Session, module: torch.nn.Module) -> str:
    """What watch() named has that name. Other roots are named by their path in the model that they are part of, be it
    called or not: the first model has no name ("" in paths), others get theirs from their class: "Discriminator",
    "Discriminator.body"."""
    known = session.roots.get(id(module))
    if known is not None and known[0]() is module:
        if session.state.step % LOOK_EVERY == 0:
            first = first_parameter(module)
            if first is not None and id(first) not in session.parameter_names:  # to() makes new ones on some devices
                for path, parameter in plain_module(module).named_parameters():
                    session.parameter_names.set_new(parameter, plain_path(known[1], path))
        return known[1]
    name = session.given_name(module)
    if name is None:
        top, path = model_of(plain_module(module))
        given = session.given_name(top)
        name = plain_path(_name_model(session, top) if given is None else given, path)
    session.roots[id(module)] = (weakref.ref(module), name)
    for path, parameter in plain_module(module).named_parameters():
        session.parameter_names.set_new(parameter, plain_path(name, path))
    return name


def enter_other(session: Session, module: torch.nn.Module) -> Places | None:
    """A call of what is no root begins, in the places that are given back; None: where nothing is heard. It is named by
    its class where its model has no name yet: the first root has the empty one."""
    places = session.places
    if places is None or session.tap is None or not session.tap.is_on:
        return None
    try:
        if id(module) not in places.names:
            with modes_aside():
                top, path = model_of(plain_module(module))
                given, model = session.given_name(top), session.models.get(id(top))
                if given is None:
                    given = model[1] if model is not None and model[0]() is top else type(top).__name__
                places.add_other(module, plain_path(given, path))
    except Exception as error:
        session.failed(error, "the names of a model")
    places.enter(module)
    return places


def _name_model(session: Session, top: torch.nn.Module) -> str:
    model = session.models.get(id(top))
    if model is not None and model[0]() is top:
        return model[1]
    _forget_parts(session)
    name = ""
    if session.models or session.given:
        base = type(plain_module(top)).__name__
        names = {*[name for _, name in session.models.values()], *session.given.values()}
        name, n = base, 1
        while name in names:
            n += 1
            name = f"{base}{n}"
    session.models[id(top)] = (weakref.ref(top), name)
    for path, parameter in plain_module(top).named_parameters():
        session.parameter_names.set(parameter, plain_path(name, path))
    return name


def _forget_parts(session: Session) -> None:
    """What was taken for a model while it was built, and has become a part of one."""
    for key, (reference, _) in list(session.models.items()):
        model = reference()
        if model is None or model_of(model)[0] is not model:
            del session.models[key]
            for root in [k for k, (r, _) in session.roots.items() if r() is None or r() is model]:
                del session.roots[root]


# id(child) -> child, its name, its parent
_parents: dict[int, tuple[weakref.ref[Any], str, weakref.ref[Any]]] = {}


def model_of(module: torch.nn.Module) -> tuple[torch.nn.Module, str]:
    """The outermost module that holds this one, but for wrappers, and the path from there."""
    path: list[str] = []
    while len(path) < 100:
        known = _parent_of(module)
        if known is None:
            break
        path.append(known[0])
        module = known[1]
    return module, ".".join(reversed(path))


def _parent_of(module: torch.nn.Module) -> tuple[str, torch.nn.Module] | None:
    """The module that holds it, which is no wrapper, and by what name. The garbage collector is asked what refers to
    what: who looked at all objects would hold tuples that other threads are still making, which makes those fail."""
    known = _parents.get(id(module))
    if known is not None and known[0]() is module:
        parent = known[2]()
        if parent is not None and parent._modules.get(known[1]) is module:
            return known[1], parent
    for held in gc.get_referrers(module):
        if not issubclass(type(held), dict) or not all(
                child is None or issubclass(type(child), torch.nn.Module) for child in list(held.values())):
            continue
        name = next((str(name) for name, child in list(held.items()) if child is module), "")
        owner = _owner_of(held)
        if owner is not None and type(owner).__name__ not in WRAPPERS:
            _parents[id(module)] = weakref.ref(module), name, weakref.ref(owner)
            return name, owner
    return None


def data_parallel_wrapper(module: torch.nn.Module) -> Any:
    """PyTorch's DistributedDataParallel that it is called by, or is; None: there is none. Other libraries have classes
    of that name."""
    kind = torch.nn.parallel.DistributedDataParallel
    for inner in (module, plain_module(module)):
        if issubclass(type(inner), kind):
            return inner
        for held in gc.get_referrers(inner):
            owner = _owner_of(held) if issubclass(type(held), dict) and held.get("module") is inner else None
            if issubclass(type(owner), kind):
                return owner
    return None


def _owner_of(held: dict[str, Any], kind: str = "_modules") -> torch.nn.Module | None:
    """The module that holds these modules, or parameters."""
    for holder in gc.get_referrers(held):
        owners = [holder] if type(holder) is not dict else gc.get_referrers(holder) if (
            holder.get(kind) is held) else []
        for owner in owners:  # a module, or what its attributes are in
            if issubclass(type(owner), torch.nn.Module) and owner.__dict__.get(kind) is held:
                found: torch.nn.Module = owner
                return found
    return None


def name_by_holder(session: Session, parameter: torch.Tensor) -> str:
    """The path of a parameter of a model that was not called as one, as where it makes its parameters when it is called
    first; "": no module has it."""
    for held in gc.get_referrers(parameter):
        owner = _owner_of(held, "_parameters") if type(held) is dict else None
        if owner is not None:
            top, _ = model_of(owner)
            if session.given_name(top) is None:
                _name_model(session, top)
            return session.parameter_names.get(id(parameter), "")
    return ""


def forget_parents() -> None:
    _parents.clear()
