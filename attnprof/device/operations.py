"""List the operations of a call with the sizes that their times depend on, without computing them.

A prediction adds up times of single operations. :func:`operations_of` runs a call on fake tensors
and notes each ATen operation; its *form* names the calibration table that gives its time.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf, prod
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnprof.device.product_times import PLAIN, is_packed, layout_of
from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import Subject, build_subject
from attnprof.trace.rules.table import VIEWS


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One operation: its name, its form (calibration table), and the sizes that decide its time.

    ``runs``: contiguous pieces of memory that it reads. ``item_bytes``: bytes of an entry.
    ``fresh``: bytes of memory it allocates. ``backward``: it belongs to the backward pass.
    ``operands``: number of input tensors. ``layout``: memory layout of a product's factors
    (:mod:`attnprof.device.product_times`). ``weights``: bytes of factors that existed before the
    call. ``dtype``: number format that it computes in, empty for none. ``packed``: copies that
    oneDNN makes of factors of half formats whose matrices do not lie one after the other.
    """

    name: str
    form: str
    sizes: tuple[int, ...] = ()
    runs: int = 1
    item_bytes: int = 4
    fresh: int = 0
    backward: bool = False
    layout: int = PLAIN
    operands: int = 1
    weights: int = 0
    dtype: str = ""
    packed: tuple["KernelCall", ...] = ()


#: Forms of fused attention, without and with a causal mask.
FUSED = ("fused", "fused causal")
#: Operations over rows of a tensor, by the name of the table that prices them.
ROWS = {
    "_softmax": "softmax", "softmax": "softmax", "_log_softmax": "softmax",
    "_softmax_backward_data": "softmax backward", "_log_softmax_backward_data": "softmax backward",
    "sum": "sum", "mean": "sum", "linalg_vector_norm": "norm", "var": "norm", "var_mean": "norm",
    "amax": "amax", "amin": "amax", "max": "max", "min": "max", "argmax": "max", "argmin": "max",
    "cumsum": "cumsum", "cummax": "cumsum", "cumprod": "cumsum", "logcumsumexp": "cumsum",
    "native_layer_norm": "layer norm", "native_layer_norm_backward": "layer norm backward",
    "sort": "sort", "topk": "sort", "argsort": "sort",
}  # fmt: skip
#: Tables with a second one, "outer …", for rows whose entries are not contiguous in memory.
OUTER = ("sum", "norm", "amax", "softmax", "softmax backward")
FILLS = (
    "fill", "zero", "full", "zeros", "ones", "new_zeros", "new_ones", "new_full", "zeros_like",
    "ones_like", "full_like", "arange", "eye", "scalar_tensor",
)  # fmt: skip
#: Operations whose index tensor has one index per entry.
ONE_BY_ONE = ("gather", "scatter", "scatter_add", "searchsorted")
_MAKES_ROOM = ("empty", "new_empty")


def tensors_of(values: Any) -> list[Any]:
    """Return the tensors anywhere in arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """A dispatched operation with its input and result tensors."""

    full_name: str
    args: tuple[Any, ...]
    inputs: list[Any]
    results: list[Any]

    @property
    def name(self) -> str:
        """The name without the underscore of operations in place."""
        return self.full_name.rstrip("_")


#: The table that gives an operation's time, its sizes there, and its runs (see KernelCall).
Form = tuple[str, tuple[int, ...], int]


def kernel_call(func: Any, args: Any, kwargs: Any, out: Any) -> KernelCall:
    """Return an operation with the form that fits it."""
    name = func._schema.name.split("::")[1]  # noqa: SLF001 - the operation's public name
    call = _Dispatched(name, args, tensors_of((args, kwargs)), tensors_of(out))
    form, sizes, runs = _form(call)
    inputs = {id(x) for x in call.inputs}
    looks = form == "view" and not call.name.startswith(_MAKES_ROOM)
    new = [] if looks else [x for x in call.results if id(x) not in inputs]
    shown = (call.results or call.inputs)[:1]
    return KernelCall(
        name, form, sizes, runs, item_bytes=shown[0].element_size() if shown else 4,
        fresh=sum(x.nbytes for x in new), backward=torch._C._current_graph_task_id() >= 0,  # noqa: SLF001 - as its docs say
        layout=layout_of(*_factors(call)) if form == "product" else PLAIN,
        operands=len(call.inputs), dtype=_number_format(call),
        packed=_packed(call) if form == "product" else (),
    )  # fmt: skip


def _number_format(call: _Dispatched) -> str:
    """Return the number format of the first tensor that has one, or of the result."""
    for x in (*call.inputs, *call.results):
        if x.is_floating_point() or x.is_complex():
            return str(x.dtype.to_real()).removeprefix("torch.")
    return ""


def _packed(call: _Dispatched) -> tuple[KernelCall, ...]:
    """Return the copies of a product's factors that the product is computed from."""
    clone, factors = torch.ops.aten.clone.default, filter(is_packed, _factors(call))
    return tuple(kernel_call(clone, (x,), {}, x.contiguous()) for x in factors)


def _form(call: _Dispatched) -> Form:
    if call.name in VIEWS or not (call.results or call.inputs):
        return "view", (), 1
    if call.name in ROWS:
        return _rows(call)
    if call.name.startswith("_scaled_dot_product"):
        return _fused(call)
    return OWN_FORMS.get(call.name, _entries)(call)


def _factors(call: _Dispatched) -> tuple[Any, Any]:
    """Return the two factors of a product."""
    a, b = call.args[1:3] if call.name in ("addmm", "baddbmm") else call.args[:2]
    return a, b


def _product(call: _Dispatched) -> Form:
    """Return a product's batch, rows, columns and length of the sums."""
    a, b = _factors(call)
    batch = a.shape[0] if a.dim() == 3 else 1
    return "product", (batch, a.shape[-2], b.shape[-1], a.shape[-1]), 1


def _rows(call: _Dispatched) -> Form:
    """Return rows and their length, from the table for contiguous rows or that for others."""
    table = ROWS[call.name]
    x = call.inputs[table == "softmax backward"]  # its gradient may lie in memory in any way
    count, left = x.numel(), max(1, min((y.numel() for y in call.results), default=1))
    arguments = call.args[2 if table == "norm" else 1 :]  # the order of a norm is a number, too
    dims = next((arg for arg in arguments if isinstance(arg, (int, list, tuple))), -1)
    over = {dim % max(1, x.dim()) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])
            if isinstance(dim, int)}  # fmt: skip
    outer = x.dim() and not any(x.stride(dim) == 1 for dim in over or range(x.dim()))
    if table == "sum" and left == count:  # over a dimension of size 1
        return "unary", (count,), 1
    columns = max(1, prod(x.shape[dim] for dim in over) if x.dim() else 1)
    rows = left if table == "sum" else max(1, count // columns)
    table_name = f"outer {table}" if outer and table in OUTER else table
    return table_name, (rows, max(1, count // rows)), 1


def _fourier(call: _Dispatched) -> Form:
    """Return a transform's rows and points."""
    real = call.inputs[0] if call.name == "_fft_r2c" else call.results[0]
    points = max(1, real.shape[-1])
    table = "inverse fourier" if call.name == "_fft_c2r" else "fourier"
    return table, (max(1, real.numel() // points), points), 1


def _gather(call: _Dispatched) -> Form:
    """Return how many pieces are moved, and their entries."""
    moved = max([*call.results, call.inputs[0]], key=lambda x: x.numel())
    return "gather", _pieces(call, moved), 1


def _scatter(call: _Dispatched) -> Form:
    """Return how many pieces are written to another tensor, and their entries."""
    gradients = call.name == "embedding_dense_backward"
    moved = max(call.inputs[not gradients :], key=lambda x: x.numel())
    return "scatter", _pieces(call, moved), 1


def _pieces(call: _Dispatched, moved: Any) -> tuple[int, int]:
    """Return how many contiguous pieces of memory an index picks, and their entries."""
    alone = call.name in ONE_BY_ONE or moved.dim() == 0
    run = 1 if alone else max(1, moved.shape[-1])
    return max(1, moved.numel() // run), run


def _fused(call: _Dispatched) -> Form:
    """Return the sizes of fused attention: heads of all rows, queries, keys, both widths."""
    backward = "backward" in call.name
    q, k, v = call.inputs[1:4] if backward else call.inputs[:3]
    causal = next((arg for arg in call.args if isinstance(arg, bool)), False)
    sizes = q.shape[0] * q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    return "fused causal" if causal else "fused", sizes, 1


OWN_FORMS: dict[str, Callable[[_Dispatched], Form]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _fourier),
    **dict.fromkeys(("gather", "index_select", "index", "embedding", "searchsorted"), _gather),
    **dict.fromkeys((
        "scatter", "index_copy", "scatter_add", "index_add", "index_put", "_index_put_impl",
        "embedding_dense_backward",
    ), _scatter),
}  # fmt: skip


def _entries(call: _Dispatched) -> Form:
    """Return an entry-by-entry operation's table, by the tensors it reads, and its entries."""
    target = max(call.results or call.inputs, key=lambda x: x.numel())
    largest = max([target, *call.inputs], key=lambda x: x.numel())
    shape = tuple(largest.shape)
    whole = {id(x) for x in call.inputs if x.numel() == largest.numel() and x is not target}
    strides = [s for x in (target, *call.inputs) if (s := spread_strides(x, shape)) is not None]
    runs, stride = loops(shape, strides)
    pattern, count = _pattern(call, len(whole)), largest.numel()
    if stride > 1:
        return f"strided {pattern}", (count // runs, stride), runs
    return pattern, (count,), runs


def _pattern(call: _Dispatched, others: int) -> str:
    """Return the table of an entry-by-entry operation, by the full-size tensors it reads."""
    if call.name in FILLS:
        return "fill"
    if call.full_name == "copy_":
        return "unary"
    if call.full_name.endswith("_"):
        return "binary in place" if others else "in place"
    return ("fill", "unary", "binary")[min(others, 2)]


def spread_strides(x: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of a tensor broadcast to a shape; None if it cannot be."""
    missing = len(shape) - x.dim()
    if missing < 0 or any(a not in (1, b) for a, b in zip(x.shape, shape[missing:], strict=True)):
        return None
    strides = (0 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (*[0] * missing, *strides)


def loops(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return how often the innermost loop over entries starts, and its largest stride.

    Adjacent dimensions that are contiguous in every tensor are one loop, as in torch's iterator.
    ``strides`` are those of each tensor, the result first.
    """
    if not strides:
        return 1, 1
    order = sorted((i for i in range(len(shape)) if shape[i] > 1), key=lambda i: -strides[0][i])
    if not order:
        return 1, 1
    order.reverse()  # from inside
    length = shape[order[0]]
    for inside, outside in pairwise(order):
        if any(stride[outside] != stride[inside] * shape[inside] for stride in strides):
            break
        length *= shape[outside]
    return max(1, prod(shape) // length), max(stride[order[0]] for stride in strides)


@dataclass(frozen=True)
class Demand:
    """The operations of a call in order.

    ``nodes``: number of autograd nodes that they made. ``functions``: calls of Python functions
    between them. ``moved``: bytes that each operation reads and writes. ``given``: bytes that the
    call reads and did not compute: weights, caches, inputs.
    """

    operations: list[KernelCall]
    nodes: int = 0
    functions: int = 0
    moved: Sequence[int] = ()
    given: int = 0


def operations_of(request: PointRequest, most_s: float = inf) -> Demand:
    """Return the operations of a point's call on fake tensors; nothing large is allocated.

    Raises :class:`attnprof.errors.RequestError` for sizes that the mechanism refuses, and
    :class:`attnprof.errors.CannotRunError` if listing takes more than ``most_s`` processor seconds.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        with _Observer(most_s):  # training runs a forward pass before, too
            subject = build_subject(request)
            subject.prepare()
        modules = len(sys.modules)
        demand = watched(subject, most_s)
        if len(sys.modules) > modules or demand.functions > MANY * len(demand.operations):
            subject.prepare()
            demand = watched(subject, most_s)
        return demand


#: Python functions per operation from which a call, which filled caches, is watched a second time.
MANY = 10


def watched(subject: Subject, most_s: float = inf) -> Demand:
    """Return the operations of a call; under fake tensors nothing is computed."""
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
    """Records every operation inside, and counts the Python functions that run between them."""

    def __init__(self, most_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_s, self.until = most_s, time.process_time() + most_s
        self.seen: list[KernelCall] = []
        #: bytes that each operation reads and writes; 0 for a view
        self.moved: list[int] = []
        self.functions = 0
        #: storages made by operations; bytes read from other storages, by storage and offset
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
        sys.setprofile(None)  # functions of fake tensors and of this class do not count
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
        """Note storages from before the call and new ones; return a product's bytes from before."""
        inputs = tensors_of(args)
        given = [x for x in inputs if _storage(x) not in self.made]
        if call.form not in NOT_WHOLE:
            for x in given:
                place = _storage(x), int(x.storage_offset())
                self.given[place] = max(x.nbytes, self.given.get(place, 0))
        self.made |= {_storage(x) for x in tensors_of(out)} - {_storage(x) for x in inputs}
        return sum(x.nbytes for x in given) if call.form == "product" else 0


#: Forms of operations that read only some pieces of a tensor (rows of an embedding), or none.
NOT_WHOLE = ("gather", "scatter", "view")


def _storage(x: Any) -> int:
    return int(x.untyped_storage()._cdata)  # noqa: SLF001 - identity, which torch has no name for


#: Files whose functions run for fake tensors only, and not in a real call.
_WATCHING = (
    "/torch/_library/", "/torch/_subclasses/", "/torch/_ops.py", "/torch/utils/_python_dispatch.py",
    "/torch/utils/weak.py", "/weakref.py", "/torch/_prims_common/", "/torch/_guards.py",
)  # fmt: skip


@cache
def _watches(file: str) -> bool:
    return file == __file__ or any(part in file for part in _WATCHING)
