"""Watches one run: every ATen operation, what it counts, and which storages live.

Storages are followed by weak references, whose death is noticed when the next operation starts.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._C import _current_autograd_node
from torch._C._autograd import _get_sequence_nr
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.trace.events import Call, Size, Trace
from attnprof.trace.rules import cost_of, expansion_of, result_of, tensors_in
from attnprof.trace.rules.gradients import depends_on_values, gradients_of, selects, told_apart
from attnprof.trace.rules.in_place import Watch
from attnprof.trace.run.values import CountedOff, Values, counted_off, key_of, refuse_outside
from attnprof.trace.sizes import size_of, storage_bytes

#: Code whose frames are not the user's.
_OURS = (str(torch.__path__[0]), str(Path(__file__).parents[1]))
#: Torch's own layers, which speak where no code of the user's is in between.
_LAYERS = str(torch.nn.__path__[0])
#: Where a run starts: what called that is not the user's code either.
_START = str(Path(__file__).with_name("runs.py"))

#: Whether the storage behind a weak reference is gone.
_expired = torch.UntypedStorage._expired
#: ``torch.tensor(…)``: the tensor is new, though the operation only passes it on.
_CONSTANT = torch.ops.aten.lift_fresh.default


class _Held:
    """A storage followed without keeping it alive; of the run's own, its number and bytes."""

    def __init__(self, tensor: Any, number: int = 0, held: Size = 0) -> None:
        self.storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.weak = self.storage.cdata
        self.number = number
        self.bytes = held
        self.counted: CountedOff | None = None


class Recorder(TorchDispatchMode):
    """Fills a :class:`Trace` with the operations that run inside it.

    What ``before_each`` raises ends the run; ``values`` follows what the code takes from values.
    """

    supports_higher_order_operators = True
    records = True

    def __init__(
        self, before_each: Callable[[], None] | None = None, values: Values | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace(decisions=values.decisions if values else [])
        self._values = values
        self.before_each = before_each
        self.part = "forward"
        self._paused = False
        self._known: dict[int, _Held] = {}
        self._lines: dict[int, str] = {}
        self._made = 0
        self._watch = Watch()
        self._node: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here: torch need not guard each call against it."""
        return False

    def given(self, tensors: Any) -> None:
        """Tensors that were there before: parameters, inputs, output gradients."""
        for tensor in tensors_in(tensors):
            self._known[key_of(tensor)] = _Held(tensor)

    @contextmanager
    def put_back(self, output: Any) -> Iterator[None]:
        """Inside, gradients that torch computes otherwise without a mode are recorded that way."""

        def before(_grads: Any) -> None:
            self._paused = True

        def after(node: Any, found: Any, grads: Any) -> Any:
            self._paused, self._node = False, node
            try:
                if op := selects(node):  # which takes as much as the values say
                    line, own = self._line(), f"aten.{op}"
                    call = Call(op, {}, 0, self.part, line, uncounted=own, scratch=own)
                    self.trace.calls.append(call)
                return gradients_of(node, found, grads[0])
            finally:
                self._node = None

        nodes = told_apart(output)
        self.trace.notes += depends_on_values(nodes)
        with ExitStack() as stack:  # a node and its hooks hold each other
            for node in nodes:
                stack.callback(node.register_prehook(before).remove)
                stack.callback(node.register_hook(partial(after, node)).remove)
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or func.namespace == "prim":
            return func(*args, **kwargs)
        inside = expansion_of(func)
        if inside is not None:
            with self:
                return inside(*args, **kwargs)
        if self.before_each:
            self.before_each()
        # storages that died since the operation before
        dead = [key for key, held in self._known.items() if _expired(held.weak)]
        died = [held for held in map(self._known.pop, dead) if held.number]
        line = self._line()
        func, args = self._watch.unwatched(func, args, sys._getframe(1))
        if self._values is None:
            refuse_outside(func, args, self._known)
        out = result_of(func, args, kwargs)
        self._watch.ran(func, out)
        if self._values is not None:
            out = self._values.after(func, args, kwargs, out, line)
        for tensor in () if func is _CONSTANT else tensors_in((args, kwargs)):
            if key_of(tensor) not in self._known:
                self._known[key_of(tensor)] = _Held(tensor)
        results = tensors_in(out)
        born = self._born(results)
        if born and self._values is None and "alpha" not in kwargs:
            born[0].counted = counted_off(func, out, args, self._known)
        call = cost_of(
            func,
            out,
            args,
            kwargs,
            part=self.part,
            line=line,
            takes=sum((held.bytes for held in born), start=0),
            gives=sum((held.bytes for held in died), start=0),
            born=tuple((held.number, held.bytes) for held in born),
            died=tuple(held.number for held in died),
            dtype=str(results[0].dtype).removeprefix("torch.") if results else "",
            shape=tuple(map(size_of, results[0].shape)) if results else (),
        )
        self.trace.calls.append(call)
        return out

    def _born(self, results: list[Any]) -> list[_Held]:
        """Storages that came to life with these results."""
        found: list[_Held] = []
        for tensor in results:
            if key_of(tensor) not in self._known:
                self._made += 1
                found.append(_Held(tensor, self._made, storage_bytes(tensor)))
                self._known[key_of(tensor)] = found[-1]
        return found

    def _line(self) -> str:
        """The user's line; a backward operation has that of the operation it differentiates."""
        node = (self._node or _current_autograd_node()) if self.part == "backward" else None
        if node is not None:
            return self._lines.get(node._sequence_nr(), "")
        line = _place(sys._getframe(2))
        if torch.is_grad_enabled():
            self._lines[_get_sequence_nr() - 1] = line
        return line


def _place(frame: FrameType | None) -> str:
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
