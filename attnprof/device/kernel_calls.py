"""One operation of a call: what prices it, and the sizes that its time depends on."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from attnprof.device.memory_order import loops, spread_strides
from attnprof.device.product_times import PLAIN, layout_of
from attnprof.trace.rules.table import VIEWS


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One operation: its name, what prices it (``form``), and the sizes that its time depends on.

    ``runs``: so many pieces of memory are gone through without a jump. ``item_bytes`` are those of
    an entry, ``fresh`` the bytes of new memory; ``backward`` is its pass. ``operands`` are the
    tensors that it is given, ``layout`` is that of a product's
    (:mod:`attnprof.device.product_times`), ``weights`` are the bytes of its factors that no
    operation of the call made.
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
#: Tables that have another one for rows whose entries do not lie next to each other.
OUTER = ("sum", "norm", "amax", "softmax", "softmax backward")
FILLS = (
    "fill", "zero", "full", "zeros", "ones", "new_zeros", "new_ones", "new_full", "zeros_like",
    "ones_like", "full_like", "arange", "eye", "scalar_tensor",
)  # fmt: skip
#: Operations whose index has a place for every entry.
ONE_BY_ONE = ("gather", "scatter", "scatter_add", "searchsorted")
_MAKES_ROOM = ("empty", "new_empty")


def tensors_of(values: Any) -> list[Any]:
    """Return the tensors anywhere in arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """An operation that was asked for, with the tensors that it took and gave."""

    full_name: str
    args: tuple[Any, ...]
    inputs: list[Any]
    results: list[Any]

    @property
    def name(self) -> str:
        """Its name without the mark of what works in place."""
        return self.full_name.rstrip("_")


#: What prices an operation, and the sizes and runs that it has.
Form = tuple[str, tuple[int, ...], int]


def kernel_call(func: Any, args: Any, kwargs: Any, out: Any) -> KernelCall:
    """Return an operation with the form that fits it."""
    name = func._schema.name.split("::")[1]  # noqa: SLF001 - the operation's public name
    call = _Dispatched(name, args, tensors_of((args, kwargs)), tensors_of(out))
    form, sizes, runs = _form(call)
    given = {id(x) for x in call.inputs}
    looks = form == "view" and not call.name.startswith(_MAKES_ROOM)
    new = [] if looks else [x for x in call.results if id(x) not in given]
    shown = (call.results or call.inputs)[:1]
    return KernelCall(
        name, form, sizes, runs, item_bytes=shown[0].element_size() if shown else 4,
        fresh=sum(x.nbytes for x in new), backward=torch._C._current_graph_task_id() >= 0,  # noqa: SLF001 - as its docs say
        layout=layout_of(*_factors(call)) if form == "product" else PLAIN,
        operands=len(call.inputs),
    )  # fmt: skip


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
    """Return rows and their length; of a sum, whether its terms lie next to each other."""
    table = ROWS[call.name]
    x = call.inputs[table == "softmax backward"]  # its gradient may lie in memory in any way
    count, left = x.numel(), max(1, min((y.numel() for y in call.results), default=1))
    given = call.args[2 if table == "norm" else 1 :]  # the order of a norm is a number, too
    dims = next((arg for arg in given if isinstance(arg, (int, list, tuple))), -1)
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
    """Return the same of what is written to another tensor, which may be far larger."""
    gradients = call.name == "embedding_dense_backward"
    moved = max(call.inputs[not gradients :], key=lambda x: x.numel())
    return "scatter", _pieces(call, moved), 1


def _pieces(call: _Dispatched, moved: Any) -> tuple[int, int]:
    """Return how many pieces of memory an index finds, and their entries."""
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
    """Return how many entries are treated alike, and which memory is gone through."""
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
    """Return the table of what is read and written, with so many tensors as large as the result."""
    if call.name in FILLS:
        return "fill"
    if call.full_name == "copy_":
        return "unary"
    if call.full_name.endswith("_"):
        return "binary in place" if others else "in place"
    return ("fill", "unary", "binary")[min(others, 2)]
