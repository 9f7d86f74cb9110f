"""What a call asks of a device: its operations with their sizes, seen without running them."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

from torch._C._autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.device.kernel_calls import KernelCall, kernel_call, tensors_of
from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import Subject, build_subject


@dataclass(frozen=True)
class Demand:
    """The operations of a call in order.

    ``nodes`` are the autograd nodes that they made, ``functions`` the calls of Python functions
    between them, ``moved`` the bytes of memory that each goes through, ``given`` the bytes that the
    call reads and did not make: weights, caches, inputs.
    """

    operations: list[KernelCall]
    nodes: int = 0
    functions: int = 0
    moved: Sequence[int] = ()
    given: int = 0


def operations_of(request: PointRequest, most_s: float = inf) -> Demand:
    """Return the operations of a point's call on fake tensors; nothing large is allocated.

    Raises what building the module raises: :class:`attnprof.errors.RequestError` for sizes that a
    mechanism refuses; :class:`attnprof.errors.CannotRunError` where seeing them takes longer than
    ``most_s`` seconds of processor time.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        with _Observer(most_s):  # training runs a forward pass before, too
            subject = build_subject(request)
            subject.prepare()
        demand = watched(subject, most_s)
        if demand.functions > MANY * len(demand.operations):  # what is computed once and kept
            subject.prepare()
            demand = watched(subject, most_s)
        return demand


#: Python functions an operation, beyond which a call is watched a second time.
MANY = 10


def watched(subject: Subject, most_s: float = inf) -> Demand:
    """Return what a call asks for; nothing is computed under fake tensors."""
    before = _get_sequence_nr()
    with _Observer(most_s) as watch:
        sys.setprofile(watch.called)
        try:
            subject.call()
        finally:
            sys.setprofile(None)
    nodes = _get_sequence_nr() - before
    return Demand(watch.seen, nodes, watch.functions, watch.moved, sum(watch.given.values()))


class _Observer(TorchDispatchMode):
    """Notes every operation inside it, and counts the Python functions that ask for them."""

    def __init__(self, most_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_s, self.until = most_s, time.process_time() + most_s
        self.seen: list[KernelCall] = []
        #: bytes that each of them goes through; a view goes through none
        self.moved: list[int] = []
        self.functions = 0
        #: storages that operations made; bytes of what they found, by storage and place in it
        self.made: set[int] = set()
        self.given: dict[tuple[int, int], int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled in here."""
        return False

    def called(self, frame: Any, event: str, _about: Any) -> None:
        """Count a function that begins, as the interpreter's profiler tells of it."""
        self.functions += event == "call" and not _watches(frame.f_code.co_filename)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        sys.setprofile(None)  # what follows is torch's work without values, and ours
        if time.process_time() > self.until:
            raise CannotRunError(
                f"has more than {len(self.seen):,} operations, which takes longer than "
                f"{self.most_s:g} s to see; ask for a shorter --seq"
            )
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace != "prim":
            call = kernel_call(func, args, kwargs, out)
            self.seen.append(replace(call, weights=self._given_bytes(call, args, out)))
            used = [] if call.form == "view" else tensors_of((args, kwargs, out))
            self.moved.append(sum({id(x): x.nbytes for x in used}.values()))
        sys.setprofile(self.called)
        return out

    def _given_bytes(self, call: KernelCall, args: Any, out: Any) -> int:
        """Note which storages are given and made; return the bytes of a product's given factors."""
        inputs = tensors_of(args)
        given = [x for x in inputs if _storage(x) not in self.made]
        if call.form not in NOT_WHOLE:
            for x in given:
                place = _storage(x), int(x.storage_offset())
                self.given[place] = max(x.nbytes, self.given.get(place, 0))
        self.made |= {_storage(x) for x in tensors_of(out)} - {_storage(x) for x in inputs}
        return sum(x.nbytes for x in given) if call.form == "product" else 0


#: Forms of operations that read a few pieces of a tensor, as rows of an embedding, or none.
NOT_WHOLE = ("gather", "scatter", "view")


def _storage(x: Any) -> int:
    return int(x.untyped_storage()._cdata)  # noqa: SLF001 - identity, which torch has no name for


#: Where the functions lie that run because nothing is computed, and that a real call has not.
_WATCHING = (
    "/torch/_library/", "/torch/_subclasses/", "/torch/_ops.py", "/torch/utils/_python_dispatch.py",
    "/torch/utils/weak.py", "/weakref.py", "/torch/_prims_common/", "/torch/_guards.py",
)  # fmt: skip


@cache
def _watches(file: str) -> bool:
    return file == __file__ or any(part in file for part in _WATCHING)
