"""Record one run: every ATen operation, what it counts, and which storages live.

Storages are followed by weak references, whose death is noticed when the next operation starts.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._C import _current_autograd_node
from torch._C._autograd import _get_sequence_nr
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from attnprof.trace.events import Call, Size, Trace
from attnprof.trace.rules import cost_of, expansion_of, result_of, tensors_in
from attnprof.trace.rules.unwatched import (
    Watch,
    depends_on_values,
    differing_nodes,
    gradients_of,
    selects,
    skip_loop,
)
from attnprof.trace.run.experts import Choices, Routing
from attnprof.trace.run.remembered import EagerMode
from attnprof.trace.run.submodules import Submodules
from attnprof.trace.run.values import CountedOff, Values, counted_off, key_of, refuse_outside
from attnprof.trace.run.worlds import current_mode
from attnprof.trace.sizes import size_of, storage_bytes

#: Code whose frames are not the user's.
_OURS = (str(torch.__path__[0]), str(Path(__file__).parents[1]))
#: Torch's own layers, whose lines are named where no line of the user's code is.
_LAYERS = str(torch.nn.__path__[0])
#: The file that starts a run: frames below it are not the user's either.
_START = str(Path(__file__).with_name("runs.py"))

#: Whether the storage of a key is gone, whose weak reference has that address, too.
_expired = torch.UntypedStorage._expired
#: ``torch.tensor(…)``: the tensor is new, though the operation only passes it on.
_CONSTANT = torch.ops.aten.lift_fresh.default
_DEVICE = torch.ops.prim.device.default


class _LiveStorage:
    """A storage, followed without keeping it alive; if the run made it, with number and bytes."""

    def __init__(self, tensor: Any, number: int = 0, size: Size = 0) -> None:
        self.key = key_of(tensor)
        self.reference: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.number = number
        self.bytes = size
        self.counted: CountedOff | None = None
        self.was_given = False  # it was there before the run


class Recorder(EagerMode):
    """Fills a :class:`Trace` with the operations that run inside it.

    What ``before_each`` raises ends the run; ``values`` follows numbers that the code takes from
    tensors, ``parts`` the submodule that runs, ``routing`` the experts that tokens choose.
    """

    records = True

    def __init__(
        self,
        before_each: Callable[[], None] | None = None,
        values: Values | None = None,
        parts: Submodules | None = None,
        routing: Routing | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._parts = parts or Submodules(None)
        decisions = values.decisions if values else []
        self.trace = Trace(decisions=decisions, modules=self._parts.entries)
        self._values = values
        self._routing, self.choices = routing, Choices(routed=routing is not None)
        self.before_each = before_each
        self.part = "forward"
        self._paused = False
        self._followed: dict[int, _LiveStorage] = {}
        self._alive: dict[int, _LiveStorage] = {}
        self._forward_places: dict[int, tuple[str, str]] = {}
        self._made = 0
        self._unshown: list[_LiveStorage] = []
        self._watch = Watch()
        self._replays = _Replays()
        self._node: Any = None
        self._turns: tuple[Size, ...] = ()
        self.operations = 0  # of loops that count their own

    def follow(self, tensors: Any, *, replaceable: bool = False) -> None:
        """Follow tensors made before the run; the run may free those that are ``replaceable``."""
        for tensor in tensors_in(tensors):
            storage = _LiveStorage(tensor, 0, storage_bytes(tensor) if replaceable else 0)
            storage.was_given = True
            self._followed[storage.key] = storage
            self._alive.update({storage.key: storage} if replaceable else {})

    def add(self, tensor: Any) -> None:
        """Add a tensor that no operation made: it counts as made by the next operation."""
        self._unshown += self._new_storages([tensor])

    def left(self, values: Callable[[], Iterable[Any]]) -> list[Any]:
        """Return the tensors among ``values()`` that this run made and that are still alive."""
        self._died_storages()
        new = {storage.key for storage in self._alive.values() if not storage.was_given}
        tensors = values() if new else ()
        return [x for x in tensors if isinstance(x, torch.Tensor) and key_of(x) in new]

    def restart_for_next_call(self, tensors: Iterable[Any]) -> Trace:
        """Restart for the next call, with ``tensors`` as given before; return the trace so far."""
        keys = set(map(key_of, tensors))
        self._died_storages()
        for storage in self._alive.values():
            storage.number *= storage.key not in keys
        self._alive = {key: storage for key, storage in self._alive.items() if not storage.number}
        first = replace(self.trace, calls=[*self.trace.calls], notes=[*self.trace.notes])
        self.trace.before = len(first.calls)
        self.trace.calls.clear()
        self.trace.notes.clear()
        self.part, self._unshown, self._made = "forward", [], 0
        return first

    @contextmanager
    def repeat(
        self, times: Any, _name: str = "", *, instead: bool = False, recorded_turns: int = 1
    ) -> Iterator[None]:
        """Count operations inside ``times`` times: one of so many alike turns of a loop.

        ``instead``: not times the turns of the loop around it. ``recorded_turns`` turns run, and
        stand for all of them.
        """
        outer, self.trace.has_loops = self._turns, True
        number = size_of(times)
        if recorded_turns != 1:
            import sympy

            number = sympy.Rational(1, recorded_turns) * number
        self._turns = (*(outer[:-1] if instead else outer), number)
        try:
            yield
        finally:
            self._turns = outer

    @contextmanager
    def correct_gradients(self, output: Any) -> Iterator[None]:
        """Record gradients inside as autograd computes them without a mode, where that differs."""
        unguarded, world = ExitStack(), current_mode()
        environment = world.shape_env if world else None

        def before(_grads: Any) -> None:
            self._paused = True
            if environment is not None:  # what torch does under a mode is no condition
                unguarded.enter_context(environment.suppress_guards())

        def after(node: Any, gradients: Any, grads: Any) -> Any:
            unguarded.close()
            self._paused, self._node = False, node
            try:
                if op := selects(node):  # which takes as much memory as the values say
                    (line, module), name = self._place(sys._getframe()), f"aten.{op}"
                    self.trace.calls.append(Call(
                        op, {}, 0, self.part, line, module=module, uncounted=name, scratch=name
                    ))  # fmt: skip
                return gradients_of(node, gradients, grads[0])
            finally:
                self._node = None

        nodes = differing_nodes(output)
        self.trace.notes += depends_on_values(nodes)
        with ExitStack() as stack:  # a node and its hooks hold each other
            stack.enter_context(unguarded)
            for node in nodes:
                skip_loop(node, lambda: self._paused)
                stack.callback(node.register_prehook(before).remove)
                stack.callback(node.register_hook(partial(after, node)).remove)
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and type(args[0]) is FakeTensor:  # a question that is asked often
            below = args[0].fake_mode.in_kernel_invocation
            return torch.device("meta") if below else args[0].fake_device
        if self._paused or func.namespace == "prim":
            return func(*args, **kwargs)
        inside = expansion_of(func, args)
        if inside is not None:
            with self, self._parts.spelt_out():
                return inside(*args, **kwargs)
        frame = sys._getframe(1)
        if self._replays.repeats(func, args, frame):
            return self._replays.expect_view_of(func(*args, **kwargs), frame)
        return self._recorded(func, args, kwargs, frame)

    def _recorded(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> Any:
        """Run and record an operation that the code of a frame calls; return its result."""
        if self.before_each:
            self.before_each()
        self._parts.note_operands(args)
        died, place = self._died_storages(), self._place(frame)
        if self._replays.end_with_copy(func, args):
            self._add(_STRIDED, args[0], args[:1], {}, place, [], died)
            died = []
        func, args = self._watch.unwatched(func, args, frame)
        if self._values is None:
            refuse_outside(func, args, self._followed)
        out = self._result(func, args, kwargs, place[0])
        for tensor in () if func is _CONSTANT else tensors_in((args, kwargs)):
            if key_of(tensor) not in self._followed:
                self._followed[key_of(tensor)] = _LiveStorage(tensor)
        born = self._new_storages(tensors_in(out))
        if born and self._values is None and "alpha" not in kwargs:
            born[0].counted = counted_off(func, out, args, self._followed)
        self._add(func, out, args, kwargs, place, [*born, *self._unshown], died)
        self._unshown = []
        self._replays.note(func, args, frame)
        return out

    def _add(
        self, func: Any, out: Any, args: Any, kwargs: Any, place: tuple[str, str],
        born: list[_LiveStorage], died: list[_LiveStorage],
    ) -> None:  # fmt: skip
        """Add an operation to the trace, with storages that it made and that died before it."""
        results, (line, module) = tensors_in(out), place
        call = cost_of(
            func, out, args, kwargs, self.choices, part=self.part, line=line, module=module,
            takes=sum((storage.bytes for storage in born), start=0),
            gives=sum((storage.bytes for storage in died), start=0),
            born=tuple((storage.number, storage.bytes) for storage in born),
            died=tuple(storage.number for storage in died if storage.number),
            dtype=str(results[0].dtype).removeprefix("torch.") if results else "",
            shape=tuple(map(size_of, results[0].shape)) if results else (),
        )  # fmt: skip
        self.trace.calls.append(call.repeated(prod(self._turns)) if self._turns else call)

    def _result(self, func: Any, args: Any, kwargs: Any, line: str) -> Any:
        """Return an operation's result, as followed values make it if there are any."""
        out = self._routing.answered(func, args, kwargs) if self._routing else None
        if out is None:
            out = result_of(func, args, kwargs)
        self._watch.observe(func, out)
        if self._values is not None:
            out = self._values.after(func, args, kwargs, out, line)
        self.choices.observe(func, args, kwargs, out)
        chosen = self._routing.observe(func, args, kwargs, out) if self._routing else None
        if chosen and self._values is not None:
            self._values.spread(*chosen)
        return out

    def _died_storages(self) -> list[_LiveStorage]:
        """Return the storages that died since the operation before, and stop following them."""
        gone = [*filter(_expired, self._alive)]
        for key in gone:
            del self._followed[key]
        return [self._alive.pop(key) for key in gone]

    def _new_storages(self, results: list[Any]) -> list[_LiveStorage]:
        """Return the storages behind results that are new, and follow them from now on."""
        storages: list[_LiveStorage] = []
        for tensor in results:
            if key_of(tensor) not in self._followed:
                self._made += 1
                storage = _LiveStorage(tensor, self._made, storage_bytes(tensor))
                self._followed[storage.key] = self._alive[storage.key] = storage
                storages.append(storage)
        return storages

    def _place(self, frame: FrameType) -> tuple[str, str]:
        """Return the user's line and the submodule; backward, those of the forward operation."""
        node = (self._node or _current_autograd_node()) if self.part == "backward" else None
        if node is not None:
            line, module = self._forward_places.get(node._sequence_nr(), ("", ""))
            return line, self._parts.running or module
        place = _line(frame), self._parts.running
        if torch.is_grad_enabled():
            self._forward_places[_get_sequence_nr() - 1] = place
        return place


def _line(frame: FrameType | None) -> str:
    layer = ""
    while frame is not None and frame.f_code.co_filename != _START:
        name = frame.f_code.co_filename
        spelled = f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        if not name.startswith(_OURS) and "torch_dispatch" not in frame.f_code.co_name:
            return spelled
        if not layer and name.startswith(_LAYERS) and not name.endswith("/module.py"):
            layer = spelled
        frame = frame.f_back
    return layer


# -- views that autograd makes again of fake tensors ---------------------------------------
# After a write to a view (``x[:, 0] += 1``) autograd repeats the operations that made the view, and
# so does the backward pass of the write (a node ``CopySlices``). Real tensors do less: a single
# ``as_strided``, in the backward pass alone. A run on fake tensors has to count what real ones do.
# Source: torch's torch/csrc/autograd/variable.cpp and functions/tensor.cpp.
_STRIDED = torch.ops.aten.as_strided.default
_CLONE = torch.ops.aten.clone.default
_WRITE = "torch::autograd::CopySlices"


class _Replays:
    """The views of a run that autograd made and no code called, found as operations pass by.

    A repeated view has the tensor, the frame and the instruction of the write that caused it.
    """

    def __init__(self) -> None:
        self._expected: Any = None  # where the next repeated view would be called
        self._finished_write = -1  # autograd's number of the last write whose views are all made

    def repeats(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Return whether an operation, called by the code of a frame, repeats a view."""
        expected, self._expected = self._expected, None
        if not getattr(func, "is_view", False) or type(args[0]) is not FakeTensor:
            return False
        return expected == _call_place(args[0], frame) or self._in_write() is not None

    def expect_view_of(self, view: Any, frame: FrameType) -> Any:
        """Return a repeated view, and expect a view of it next: views of views come in a row."""
        self._expected = _call_place(view, frame)
        return view

    def note(self, func: Any, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note an operation that ran; if it wrote to a view, expect that view's repetition next."""
        if not torch.is_grad_enabled() or not args or type(args[0]) is not FakeTensor:
            return
        writes = isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable
        if writes and args[0]._is_view() and any(x.requires_grad for x in tensors_in(args)):
            self._expected = _call_place(args[0]._base, frame)

    def end_with_copy(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether an operation is the copy after the views of a write's backward pass.

        Views after it are called by code.
        """
        copies = func is _CLONE and type(args[0]) is FakeTensor
        number = self._in_write() if copies else None
        self._finished_write = self._finished_write if number is None else number
        return number is not None

    def _in_write(self) -> int | None:
        """Return autograd's number of the write whose backward pass makes its views, or None."""
        node = _current_autograd_node()
        if node is None or node.name() != _WRITE or node._sequence_nr() == self._finished_write:
            return None
        return int(node._sequence_nr())


def _call_place(tensor: Any, frame: FrameType) -> tuple[int, int, int]:
    """Return the identity of a call: its tensor, and the frame and instruction that made it."""
    return id(tensor), id(frame), frame.f_lasti
