# SPDX-License-Identifier: Apache-2.0
"""The step again from its tape, op by op, and its comparison with the original.

It begins from what was there before each call: gradients are set aside, buffers are copies, random states and
attributes of modules are as they were. Where it runs in the run's own process they are put back, as far as they are
known; in a forked child (elsewhere.py) nothing has to be. What cannot be done again is refused, with the reason.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._listener import RootCall
from nanhunt._names import plain_module, plain_path
from nanhunt._random import set_random_state
from nanhunt._sentinel.comparison import OUTPUT, Facts, measure, read_facts
from nanhunt._sentinel.contents import has_contents, modules_in, put
from nanhunt._sentinel.tape import (
    ENDS,
    BackwardEntry,
    Copied,
    Held,
    Key,
    OpEntry,
    Ref,
    RootEntry,
    TapeOfStep,
    gradient_of,
    leaves,
    op_results,
    storage_of,
    tensors_of,
    version_of,
)
from nanhunt._sentinel.unchanged import (
    Autocast,
    Hanging,
    attributes_of,
    eagerly,
    hushed,
    module_hooks,
    no_accumulation_hooks,
    no_mode,
    quiet,
    random_states,
    set_python_rng,
)
from nanhunt._tap.marks import tensors_in
from nanhunt._tap.ops import OpWriter

if TYPE_CHECKING:
    from nanhunt._sentinel.shadow import Slot
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor


class Refused(Exception):
    """The step cannot be replayed: why, as a clause. `changed`: the replay changed what it did not know of, so its
    modules must be learnt anew."""

    def __init__(self, why: str, changed: bool = False) -> None:
        super().__init__(why)
        self.changed = changed


class Replay:
    """Plays a tape once. `slot`: the run has gone on since, and this is what its parameters were."""

    def __init__(self, session: Session, values: Values, writer: OpWriter, tape: TapeOfStep,
                 parameters: Sequence[tuple[_Tensor, str]], slot: Slot | None = None) -> None:
        self.session, self.values, self.tape, self.slot = session, values, tape, slot
        self.writer, self.places = writer, writer.places
        self.parameters = parameters
        self.facts: Facts = {}
        self.gradients: dict[int, _Tensor] = {}  # id(leaf) -> its gradient in the replay
        self.env: dict[Key, _Tensor] = {}
        self.notes: list[str] = []
        self._marked: set[int] = set()
        self._swapped: list[tuple[dict[str, Any], str, Any]] = []  # (dict, name, original buffer)
        self._of_buffers: set[int] = set()                         # ids of the dicts
        self._copies: dict[int, _Tensor] = {}                      # id(buffer) -> copy that the replay writes

    # Before.
    def check(self, needed: Sequence[Any]) -> None:
        """Raises Refused where the tape cannot be played."""
        if not self.tape.roots:
            raise Refused("no call of a module with parameters was seen in this step, so its forward is not known")
        if self.tape.refusal:
            raise Refused(self.tape.refusal)
        if not self.unfinished and not any(isinstance(e, BackwardEntry) and not e.is_grad for e in needed):
            raise Refused("no backward was seen in this step")
        if not any(isinstance(e, RootEntry) for e in needed):
            raise Refused("no call of a module with parameters led to this backward")
        for entry in needed:
            if isinstance(entry, RootEntry):
                if entry.module.training != entry.training:
                    raise Refused("a module was switched between training and evaluation after its call")
                for held in entry.inputs:
                    if not self._is_as_it_was(held):
                        raise Refused("an input was written after the module was called with it")
                self._check_buffers(entry)
                things = {id(thing) for thing, _ in entry.things}
                for _, name, value in entry.attributes:
                    if isinstance(value, Held) and not self._is_as_it_was(value) and id(value.tensor) not in things:
                        raise Refused(f"the tensor that was {name} of a module was written after the call")
            elif isinstance(entry, OpEntry):
                if entry.func is None:
                    raise Refused(f"the operation {entry.op} is not there any more")
                for value in leaves(entry.args, entry.kwargs):
                    if isinstance(value, Held) and not self._is_as_it_was(value):
                        raise Refused(f"an input of {entry.func} was written after the operation had read it")
        for module in {id(e.module): e.module for e in needed if isinstance(e, RootEntry)}.values():
            why = _sharded(module)
            if why:
                raise Refused(why)
        if self.slot is not None:
            self._check_what_is_older(needed, self.slot)

    def _is_as_it_was(self, held: Held) -> bool:
        return held.is_unchanged() or (self.slot is not None and self.slot.as_it_was(held.tensor, held.version))

    def _check_what_is_older(self, needed: Sequence[Any], slot: Slot) -> None:
        """What the shadow copy does not hold must be as the step left it."""
        if any(version_of(p) != version for p, version in slot.others):
            raise Refused("a parameter of which there is no shadow copy was written since")
        left: dict[int, tuple[_Tensor, str, int]] = {}
        copied: set[int] = set()
        for entry in needed:
            if isinstance(entry, RootEntry):
                left.update({id(b): (b, path, version) for b, path, version in zip(*entry.left)})
                if entry.buffers is not None:
                    copied.update(entry.buffers.ids())
        for key, (b, path, version) in left.items():
            if key not in copied and version_of(b) != version:
                raise Refused(f"the buffer {path} was written since, and there is no copy of it")

    def needed(self) -> list[Any]:
        """Entries that the backward calls since the last boundary depend on, in order."""
        entries, segment = self.tape.entries(), self.tape.segment
        wanted = {storage_of(key) for key in self.tape.gradients.values() if key}
        chosen = []
        for entry in reversed(entries):
            if isinstance(entry, BackwardEntry):
                take = entry.segment == segment and not entry.is_grad
                take = take or any(key is not None and storage_of(key) in wanted for key in entry.outputs)
            elif isinstance(entry, RootEntry):  # one that raised gave nothing to a step that went on
                take = entry.segment == segment and (entry.raised is None or self.unfinished)
                take = take or any(storage_of(key) in wanted for key in entry.outputs)
            else:
                take = any(storage_of(key) in wanted for key in entry.outputs) or any(n in wanted for n in entry.writes)
                take = take or self.unfinished and entry.segment == segment
                take = take and not (entry.after and entry.segment != segment)
            if take:
                chosen.append(entry)
                wanted.update(n for n in _numbers_in(entry))
        chosen.reverse()
        return chosen

    # The play.
    def run(self, needed: Sequence[Any]) -> None:
        session, writer = self.session, self.writer
        with ExitStack() as stack:
            stack.enter_context(quiet(session))
            stack.enter_context(random_states(needed))
            hanging = stack.enter_context(attributes_of(needed, restores=not self.elsewhere))
            modules = {m for e in needed if isinstance(e, RootEntry) for m in e.module.modules()}
            hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
            if hooks:
                self.notes.append(f"{hooks} forward hook{'s' if hooks > 1 else ''} of the program ran again.")
            if hanging.tensors.left_out:
                raise Refused("tensors that hang on its modules are too large to be put back")
            stack.enter_context(no_accumulation_hooks([p for p, _ in self.parameters]))
            stack.enter_context(eagerly())
            if not self.elsewhere:
                stack.enter_context(hushed())
            stack.enter_context(self._own_buffers(needed))
            stack.enter_context(self._gradients_aside(needed))
            stack.enter_context(Autocast.saved())
            self.places.begin_step()
            stack.enter_context(writer.tap.generators_kept())
            stack.enter_context(module_hooks(self.places, lambda: writer.phase == lib.BACKWARD))
            stack.enter_context(writer.listening())
            self.env = {key: (t if t.requires_grad else t.detach().clone()) for key, t in self.tape.start.items()}
            with torch.enable_grad():
                for entry in needed:
                    self._play(entry)
            self._check_what_changed(needed, hanging)
            self._keep_gradients()
            self._unscale()
            self._mark_end()

    def _play(self, entry: Any) -> None:
        self.writer.micro_batch = entry.micro_batch
        if isinstance(entry, RootEntry):
            self._root(entry)
        elif isinstance(entry, OpEntry):
            self._op(entry)
        else:
            self._backward(entry)

    def _root(self, entry: RootEntry) -> None:
        self._fill_buffers(entry)
        set_random_state(entry.rng)
        set_python_rng(entry.python_rng)
        for generator, state in entry.generators:
            generator.set_state(state)
        Autocast.set(entry.autocast)
        with no_mode(), torch.no_grad():
            for attributes, name, value in entry.attributes:
                if isinstance(value, Held):
                    value = value.tensor
                    if id(attributes) in self._of_buffers:
                        value = value.detach().clone()
                if attributes.get(name, attributes) is not value:
                    attributes[name] = value
            for thing, before in entry.things:
                put(thing, before)
        args, kwargs = self._unpack(entry.args), self._unpack(entry.kwargs)
        writer, places = self.writer, self.places
        self._mark_start(entry, args, kwargs)
        writer.phase = lib.FORWARD
        writer.set_site(None, entry.site)
        places.enter_root(RootCall(entry.module, entry.name, args, kwargs, entry.index))
        try:
            output = plain_module(entry.module)(*args, **kwargs)  # not compiled code, which warns of hooks
        except BaseException as error:
            if entry.raised is None or not issubclass(type(error), entry.raised):
                raise
            return
        finally:
            places.exit_root()
            writer.set_site(None)
        if entry.raised is not None:
            raise Refused(f"a module raised {entry.raised.__name__}, and did not when it was called again")
        tensors = list(tensors_of(output))
        for key, t in zip(entry.outputs, tensors):
            self._define(key, t)
        if len(tensors) != len(entry.outputs):
            raise Refused("a module returned another number of tensors when it was called again")
        for i, (t, (ref, version)) in enumerate(zip(tensors, entry.seen)):
            original = ref()
            if original is not None and version_of(original) == version:
                self._fact(OUTPUT, f"{i} of call {entry.index} of {entry.name or type(entry.module).__name__}", t)

    def _check_what_changed(self, needed: Sequence[Any], hanging: Hanging) -> None:
        """What the modules' calls changed here they changed in the step as well: it must have been put back first."""
        with no_mode():
            found = hanging.unforeseen(needed)
        if found:
            raise Refused(f"forward changed {found}, and what that was before the call is not known", changed=True)

    def learn_again(self, needed: Sequence[Any]) -> None:
        for info in {id(e.info): e.info for e in needed if isinstance(e, RootEntry) and e.info is not None}.values():
            info.learn_again()

    def _op(self, entry: OpEntry) -> None:
        if entry.rng is not None:
            set_random_state(entry.rng)
            for generator, state in entry.generators:
                generator.set_state(state)
        Autocast.set(None)
        args, kwargs = self._unpack(entry.args), self._unpack(entry.kwargs)
        writer = self.writer
        writer.phase = entry.phase
        self.places.leave_modules()
        writer.set_site(entry.site)
        with torch.set_grad_enabled(entry.grad):
            result = entry.func(*args, **kwargs)
        writer.set_site(None)
        for key, t in zip(entry.outputs, op_results(result)):
            self._define(key, t)

    def _backward(self, entry: BackwardEntry) -> None:
        tensors = self._unpack(entry.tensors)
        gradients = self._unpack(entry.gradients)
        inputs = self._unpack(entry.inputs)
        writer = self.writer
        self._losses(entry)
        self.places.begin_backward()
        writer.phase = lib.BACKWARD
        writer.set_site(entry.site)
        if not entry.autocast_on:
            Autocast.end_region()
        Autocast.set(None)
        if entry.is_grad:
            results = torch.autograd.grad(tensors, inputs, gradients, **entry.options)
            for key, t in zip(entry.outputs, results):
                if key is not None and t is not None:
                    self._define(key, t)
        else:
            self._set_leaves_aside(tensors)
            torch.autograd.backward(tensors, gradients, inputs=inputs, **entry.options)
            for leaf, key in entry.gradients_made:
                if leaf.grad is not None:
                    self._define(key, leaf.grad)
        writer.set_site(None)

    # Names.
    def _define(self, key: Key, t: _Tensor) -> None:
        self.env[key & ~3 | gradient_of(t)] = t

    def _unpack(self, value: Any) -> Any:
        kind = type(value)
        if kind is Ref:
            t = self.env.get(value.key)
            return self._as_trained(value.key) if t is None else t
        if kind is Held:
            number = self.slot.number(value) if self.slot is not None else None
            return value.tensor if number is None else number
        if kind is Copied:
            return value.make({name: self._unpack(item) for name, item in value.parts.items()})
        if kind is list or kind is tuple:
            return kind([self._unpack(v) for v in value])
        if kind is dict:
            return {name: self._unpack(item) for name, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*[self._unpack(v) for v in value])
        return value

    def _as_trained(self, key: Key) -> _Tensor:
        """One that did not require a gradient when an op gave it, and does now."""
        t = self.env.get(key & ~3)
        if t is not None and key & ENDS and not t.requires_grad:  # the program said so: requires_grad_()
            t.requires_grad_()
        if t is None or gradient_of(t) != key & 3:  # a write to a part of it passes gradients on
            raise Refused("a tensor of the step came out otherwise or was made where nothing is watched")
        self.env[key] = t
        return t

    # Facts and marks.
    def _fact(self, kind: int, path: str, t: _Tensor) -> None:
        read = read_facts(self.session, self.values, [(kind, path, t)])
        self.facts.update(read)

    def _mark(self, kind: int, path: str, t: _Tensor, micro_batch: int = 0) -> None:
        recorder = self.session.recorder
        value = self.values.describe(t.detach()) if recorder is not None else None
        if recorder is None or value is None:
            return
        recorder.rows([lib.ROW_MARK, kind, self.session.step, micro_batch, recorder.text(path), *value])
        self.values.release_hosts()

    def _mark_start(self, entry: RootEntry, args: Any, kwargs: Any) -> None:
        with no_mode():
            if id(entry.module) not in self._marked:
                self._marked.add(id(entry.module))
                names = self.session.parameter_names
                for name, p in plain_module(entry.module).named_parameters():
                    self.values.renew(p)
                    self._mark(lib.MARK_PARAMETER, names.get(id(p), name), p)
                for name, b in plain_module(entry.module).named_buffers():
                    if b.is_floating_point():
                        self.values.renew(b)
                        self._mark(lib.MARK_BUFFER, plain_path(entry.name, name), b)
            for path, t in tensors_in((args, kwargs)):
                if t.grad_fn is not None:
                    continue
                place = path.split(".", 1)[1] if "." in path else path
                self.values.renew(t)
                self._mark(lib.MARK_BATCH if t.is_floating_point() else lib.MARK_LABEL, f"input {place}", t,
                           entry.micro_batch)

    def _losses(self, entry: BackwardEntry) -> None:
        for at, (path, named) in enumerate(entry.loss or ()):
            t = self.env.get(named.key) if isinstance(named, Ref) else named.tensor
            if t is None:
                continue
            with no_mode():
                self._mark(lib.MARK_LOSS, "loss" if at == 0 else f"loss {at}", t, entry.micro_batch)
                self._fact(lib.MARK_LOSS, path, t)

    def _mark_end(self) -> None:
        with no_mode():
            for p, path in self.parameters:
                g = self.gradients.get(id(p))
                if g is not None:
                    self._mark(lib.MARK_GRADIENT, path, g)
            for holder, name, original in self._swapped:
                copied = holder.get(name)
                if isinstance(copied, _Tensor) and copied.is_floating_point() and copied is not original:
                    self._mark(lib.MARK_BUFFER, self._buffer_names.get(id(original), name), copied)

    # Gradients.
    @contextmanager
    def _gradients_aside(self, needed: Sequence[Any]) -> Iterator[None]:
        self._aside: dict[int, tuple[_Tensor, _Tensor | None]] = {}
        for p, _ in self.parameters:
            self._set_aside(p)
        for entry in needed:
            for value in leaves(entry):
                if isinstance(value, Held) and value.tensor.requires_grad:
                    self._set_aside(value.tensor)
        try:
            yield
        finally:
            for leaf, gradient in self._aside.values():
                leaf.grad = gradient

    def _set_aside(self, leaf: _Tensor) -> None:
        if id(leaf) not in self._aside and leaf.is_leaf:
            self._aside[id(leaf)] = (leaf, leaf.grad)
            with no_mode():
                leaf.grad = leaf.grad.detach().clone() if self.kept and leaf.grad is not None else None

    def _set_leaves_aside(self, tensors: Sequence[_Tensor]) -> None:
        """Whatever backward would add to: also what is no parameter."""
        seen: set[Any] = set()
        stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if isinstance(variable, _Tensor):
                self._set_aside(variable)
            stack += [n for n, _ in node.next_functions]  # type: ignore[misc]

    def _keep_gradients(self) -> None:
        for leaf, original in self._aside.values():  # the program may have put another in its place
            again = self.env.get(self.tape.gradients.get(id(leaf), 0)) if original is not None else None
            again = leaf.grad if again is None or leaf.grad is None else again
            if again is not None:
                self.gradients[id(leaf)] = again
        with no_mode():
            items = [(lib.MARK_GRADIENT, path, self.gradients[id(p)]) for p, path in self.parameters
                     if id(p) in self.gradients]
            if self.by_measure:
                self.facts.update(measure(self.session, self.values, [(path, g) for _, path, g in items]))
            else:
                self.facts.update(read_facts(self.session, self.values, items))

    elsewhere = False    # in a child: nothing has to be put back, and what is printed is not seen
    unfinished = False   # the program gave the step up: all of it is wanted
    kept = False         # bad gradients were there before: what is bad of them is so whatever was added since
    by_measure = False   # gradients of the step are known by their norms only
    scale: float = 1.0  # by which the gradients are still multiplied

    def _unscale(self) -> None:
        """As the scaler would: what the optimizer would use is what is marked."""
        writer = self.writer
        if self.scale == 1.0:
            return
        writer.phase = lib.UNSCALE
        writer.set_site(None if self.slot is None else "")  # the run has gone on since: the line is not known
        groups: dict[Any, list[_Tensor]] = {}
        owned: list[tuple[_Tensor, str]] = []
        with torch.no_grad():
            for p, _ in self.parameters:
                g = self.gradients.get(id(p))
                if g is not None and g.layout is torch.strided:
                    owned.append((g, self.session.parameter_names.get(id(p), "")))
                    groups.setdefault((g.device, g.dtype), []).append(g)
            writer.own(owned)
            for (device, _), gradients in groups.items():
                with no_mode():
                    found = torch.zeros((), device=device)
                    inverse = torch.full((), 1.0 / self.scale, device=device)
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        writer.own(())

    # Buffers.
    @contextmanager
    def _own_buffers(self, needed: Sequence[Any]) -> Iterator[None]:
        """Modules get copies of their buffers, which the replay may write."""
        self._buffer_names: dict[int, str] = {}
        for entry in needed:
            if not isinstance(entry, RootEntry):
                continue
            root = plain_module(entry.module)
            paths = {id(module): path for path, module in root.named_modules()}
            for module in modules_in(root):
                path = paths.get(id(module), "")
                self._of_buffers.add(id(module._buffers))
                for name, b in module._buffers.items():
                    if b is None:
                        continue
                    full = plain_path(entry.name, path, name)
                    self._buffer_names.setdefault(id(b), full)
                    if id(b) not in self._copies:
                        self._copies[id(b)] = b.detach().clone()
                        self._originals[id(b)] = b
                    if not any(holder is module._buffers and n == name for holder, n, _ in self._swapped):
                        self._swapped.append((module._buffers, name, b))
        for holder, name, b in self._swapped:
            holder[name] = self._copies[id(b)]
        try:
            yield
        finally:
            for holder, name, b in self._swapped:
                holder[name] = b

    @property
    def _originals(self) -> dict[int, _Tensor]:
        return self.__dict__.setdefault("_originals_", {})

    def _check_buffers(self, entry: RootEntry) -> None:
        """Those that came since the module was looked at were not copied."""
        if entry.info is None:
            return
        replaced = {(id(held), name) for held, name, _ in entry.attributes}
        for module in modules_in(plain_module(entry.module)):
            for name, b in module._buffers.items():
                if b is not None and id(b) not in entry.info.buffers.ids and (
                        id(module._buffers), name) not in replaced and has_contents(b):
                    entry.info.learn_again()
                    raise Refused(f"the buffer {name} took another's place, and what it held before the call is not "
                                  "known")

    def _fill_buffers(self, entry: RootEntry) -> None:
        if entry.buffers is None:
            return
        with no_mode(), torch.no_grad():
            try:
                for b, contents in entry.buffers.contents():
                    if id(b) in self._copies:
                        self._copies[id(b)].copy_(contents)
            except (ValueError, RuntimeError) as error:
                raise Refused("a buffer has another shape than when it was copied") from error


def _numbers_in(entry: Any) -> Iterator[int]:
    for value in leaves(entry):
        if isinstance(value, Ref):
            yield storage_of(value.key)


def _sharded(module: torch.nn.Module) -> str:
    for part in module.modules():
        if any(kind.__name__ in ("FSDPModule", "FullyShardedDataParallel") for kind in type(part).__mro__):
            return "its parameters are sharded (FSDP): a replay would need the other ranks"
    for p in module.parameters():
        if type(p.data).__name__ == "DTensor":
            return "its parameters are distributed tensors: a replay would need the other ranks"
    return ""
