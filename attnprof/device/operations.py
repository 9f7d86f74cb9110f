"""List the operations of a call with the sizes that their times depend on, without computing them.

A prediction adds up times of single operations. So a call runs on fake tensors, which have shapes
and strides but no values, and each ATen operation is recorded with its form
(:mod:`attnprof.device.operation_forms`), together with the autograd nodes and Python functions in
between. Entry point: :func:`operations_of`.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

from torch._C._autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.device.operation_forms import FUSED, KernelCall, kernel_call, tensors_of
from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import Subject, build_subject


@dataclass(frozen=True)
class Demand:
    """The operations of a call in order.

    ``nodes``: number of autograd nodes that they create. ``functions``: calls of Python functions
    between them. ``moved``: bytes that each operation reads and writes. ``input_bytes``: bytes
    that the call reads from storages that existed before: weights, caches, inputs.
    """

    operations: list[KernelCall]
    nodes: int = 0
    functions: int = 0
    moved: Sequence[int] = ()
    input_bytes: int = 0


def operations_of(request: PointRequest, most_s: float = inf) -> Demand:
    """Return the operations of a point's call, run on fake tensors without large allocations.

    Raises :class:`attnprof.errors.RequestError` for sizes that the mechanism refuses, and
    :class:`attnprof.errors.CannotRunError` if listing takes more than ``most_s`` processor seconds.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        with _Observer(most_s):  # limits preparation: training runs a forward pass
            subject = build_subject(request)
            subject.prepare()
        modules = len(sys.modules)
        demand = list_operations(subject, most_s)
        many = MANY_FUNCTIONS * len(demand.operations)
        kind = (
            request.mechanism, repr(request.params), request.phase, request.causal, request.scope,
            request.dtype,
        )  # fmt: skip
        is_new = kind not in _LISTED and len(demand.operations) <= FEW_OPERATIONS
        _LISTED.add(kind)
        if len(sys.modules) > modules or demand.functions > many or is_new:  # it may fill caches
            subject.prepare()
            demand = list_operations(subject, most_s)
        return demand


#: Python functions per operation from which on a call is listed a second time; operations up to
#: which the first call of a kind is, so that a time is the same whatever was predicted before.
MANY_FUNCTIONS, FEW_OPERATIONS = 10, 300
#: Kinds of calls that were listed in this process.
_LISTED: set[tuple[Any, ...]] = set()


def list_operations(subject: Subject, most_s: float = inf) -> Demand:
    """Return the operations of a subject's call, which runs once.

    ``most_s``: limit in processor seconds, see :func:`operations_of`.
    """
    before = _get_sequence_nr()
    with _Observer(most_s) as observer:
        sys.setprofile(observer.count_function)
        try:
            subject.call()
        finally:
            sys.setprofile(None)
    nodes = _get_sequence_nr() - before
    return Demand(
        observer.operations, nodes, observer.functions, observer.moved, sum(observer.outer.values())
    )


class _Observer(TorchDispatchMode):
    """A dispatch mode that records operations and counts the Python functions between them."""

    def __init__(self, most_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_s, self.until = most_s, time.process_time() + most_s
        self.operations: list[KernelCall] = []
        #: bytes that each operation reads and writes; 0 for a view
        self.moved: list[int] = []
        self.functions = 0
        #: storages made by operations; bytes read from other storages, by storage and offset
        self.created: set[int] = set()
        self.outer: dict[tuple[int, int], int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled inside."""
        return False

    def __exit__(self, *error: object) -> None:
        """Take the profiling hook back, which a refusal between two operations would leave."""
        sys.setprofile(None)
        super().__exit__(*error)  # type: ignore[no-untyped-call] # torch leaves it untyped

    def count_function(self, frame: Any, event: str, _about: Any) -> None:
        """Count a Python function that begins; called by the interpreter's profiling hook."""
        if event != "call" or frame.f_code.co_name == "__eq__":  # of a key that a cache has or not
            return
        self.functions += not _runs_for_fake_tensors_only(frame.f_code.co_filename)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute an operation's result and record the operation."""
        sys.setprofile(None)  # functions of fake tensors and of this class do not count
        if time.process_time() > self.until:
            raise CannotRunError(
                f"has more than {len(self.operations):,} operations, which takes longer than "
                f"{self.most_s:g} s to see; ask for a shorter --seq"
            )
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.namespace != "prim":
            call = kernel_call(func, args, kwargs, out)
            self.operations.append(replace(call, weights=self._weight_bytes(call, args, out)))
            used = [] if call.form == "view" else tensors_of((args, kwargs, out))
            self.moved.append(sum({id(x): x.nbytes for x in used}.values()))
        sys.setprofile(self.count_function)
        return out

    def _weight_bytes(self, call: KernelCall, args: Any, out: Any) -> int:
        """Record given and created storages; return the given bytes that READS_GIVEN read."""
        inputs = tensors_of(args)
        outer = [x for x in inputs if _storage(x) not in self.created]
        if call.form not in PARTIAL_READS:
            for x in outer:
                place = _storage(x), int(x.storage_offset())
                self.outer[place] = max(x.nbytes, self.outer.get(place, 0))
        self.created |= {_storage(x) for x in tensors_of(out)} - {_storage(x) for x in inputs}
        return sum(x.nbytes for x in outer) if call.form in READS_GIVEN else 0


#: Forms of operations whose given factors count: weights, and caches of keys and values.
READS_GIVEN = ("product", *FUSED)
#: Forms of operations that read only pieces of a tensor (rows of an embedding), or nothing.
PARTIAL_READS = ("gather", "scatter", "view")


def _storage(x: Any) -> int:
    """Return a number that identifies a tensor's storage."""
    return int(x.untyped_storage()._cdata)  # noqa: SLF001 - identity, which torch has no name for


#: Parts of paths of files whose functions run for fake tensors only, not in a real call.
_FAKE_TENSOR_FILES = (
    "/torch/_library/", "/torch/_subclasses/", "/torch/_ops.py", "/torch/utils/_python_dispatch.py",
    "/torch/utils/weak.py", "/weakref.py", "/torch/_prims_common/", "/torch/_guards.py",
)  # fmt: skip


@cache
def _runs_for_fake_tensors_only(file: str) -> bool:
    """Return whether the functions of a file would not run in a real call."""
    return file == __file__ or any(part in file for part in _FAKE_TENSOR_FILES)
