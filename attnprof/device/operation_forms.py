"""Find the calibration table that prices an operation, and the sizes that decide its time.

A *form* names a table of a calibration: a product is priced by its shape, a reduction by rows and
columns, a gather by pieces and their length, a pointwise operation by its entries and the pattern
of memory access, with a jump wherever contiguous memory ends. Only shapes and strides are looked
at, so operations on fake tensors have forms, too. Entry point: :func:`kernel_call`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from attnprof.device.product_times import PLAIN, is_packed, layout_of
from attnprof.trace.rules.table import VIEWS


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One operation: its name, its form (calibration table), and the sizes that decide its time.

    ``runs``: how often its innermost loop over entries starts. ``item_bytes``: bytes of an entry.
    ``fresh``: bytes of memory it allocates. ``backward``: it belongs to the backward pass.
    ``operands``: number of input tensors. ``layout``: memory layout of a product's factors
    (:mod:`attnprof.device.product_times`). ``weights``: bytes of factors that existed before the
    call. ``dtype``: number format that it computes in, empty for none. ``packed``: copies that
    oneDNN makes of a product's factors in half formats if their matrices are not dense.
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
#: Tables with a second table, "outer …", for rows whose entries are not contiguous in memory.
OUTER = ("sum", "norm", "amax", "softmax", "softmax backward")
#: Operations that write a tensor without reading one.
FILLS = (
    "fill", "zero", "full", "zeros", "ones", "new_zeros", "new_ones", "new_full", "zeros_like",
    "ones_like", "full_like", "arange", "eye", "scalar_tensor",
)  # fmt: skip
#: Operations whose index tensor has an index per entry, not per row.
SINGLE_ENTRY_INDEX = ("gather", "scatter", "scatter_add", "searchsorted")
#: Prefixes of operations that allocate memory and write nothing, priced as views.
ALLOCATIONS = ("empty", "new_empty")


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
    """Return a dispatched operation as a :class:`KernelCall`.

    ``func``, ``args``, ``kwargs``: as ``__torch_dispatch__`` gets them. ``out``: its result.
    """
    name = func._schema.name.split("::")[1]  # noqa: SLF001 - the operation's public name
    call = _Dispatched(name, args, tensors_of((args, kwargs)), tensors_of(out))
    form, sizes, runs = _form(call)
    inputs = {id(x) for x in call.inputs}
    is_view = form == "view" and not call.name.startswith(ALLOCATIONS)
    allocated = [] if is_view else [x for x in call.results if id(x) not in inputs]
    main_tensor = (call.results or call.inputs)[:1]
    return KernelCall(
        name, form, sizes, runs, item_bytes=main_tensor[0].element_size() if main_tensor else 4,
        fresh=sum(x.nbytes for x in allocated), backward=torch._C._current_graph_task_id() >= 0,  # noqa: SLF001 - as its docs say
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
    """Return the copies of factors that oneDNN makes before it computes a product."""
    clone, factors = torch.ops.aten.clone.default, filter(is_packed, _factors(call))
    return tuple(kernel_call(clone, (x,), {}, x.contiguous()) for x in factors)


def _form(call: _Dispatched) -> Form:
    """Return the form of an operation, its sizes and its runs."""
    if call.name in VIEWS or not (call.results or call.inputs):
        return "view", (), 1
    if call.name in ROWS:
        return _rows(call)
    if call.name.startswith("_scaled_dot_product"):
        return _fused(call)
    return FORM_RULES.get(call.name, _entries)(call)


def _factors(call: _Dispatched) -> tuple[Any, Any]:
    """Return the two factors of a product."""
    a, b = call.args[1:3] if call.name in ("addmm", "baddbmm") else call.args[:2]
    return a, b


def _product(call: _Dispatched) -> Form:
    """Return the form of a product; sizes: batch, rows, columns, length of the sums."""
    a, b = _factors(call)
    batch = a.shape[0] if a.dim() == 3 else 1
    return "product", (batch, a.shape[-2], b.shape[-1], a.shape[-1]), 1


def _rows(call: _Dispatched) -> Form:
    """Return the form of an operation over rows, "outer" if their entries are not contiguous.

    Sizes: rows, entries of a row.
    """
    table = ROWS[call.name]
    x = call.inputs[table == "softmax backward"]  # the result, not its gradient
    entries = x.numel()
    result_entries = max(1, min((y.numel() for y in call.results), default=1))
    arguments = call.args[2 if table == "norm" else 1 :]  # the order of a norm is a number, too
    dims = next((arg for arg in arguments if isinstance(arg, (int, list, tuple))), -1)
    listed = dims if isinstance(dims, (list, tuple)) else [dims]
    reduced = {dim % max(1, x.dim()) for dim in listed if isinstance(dim, int)}
    is_outer = x.dim() and not any(x.stride(dim) == 1 for dim in reduced or range(x.dim()))
    if table == "sum" and result_entries == entries:  # over a dimension of size 1
        return "unary", (entries,), 1
    columns = max(1, prod(x.shape[dim] for dim in reduced) if x.dim() else 1)
    rows = result_entries if table == "sum" else max(1, entries // columns)
    table_name = f"outer {table}" if is_outer and table in OUTER else table
    return table_name, (rows, max(1, entries // rows)), 1


def _fourier(call: _Dispatched) -> Form:
    """Return the form of a Fourier transform; sizes: rows, points of the real signal."""
    real = call.inputs[0] if call.name == "_fft_r2c" else call.results[0]
    points = max(1, real.shape[-1])
    table = "inverse fourier" if call.name == "_fft_c2r" else "fourier"
    return table, (max(1, real.numel() // points), points), 1


def _gather(call: _Dispatched) -> Form:
    """Return the form of an operation that reads pieces by index; sizes: pieces, their entries."""
    moved = max([*call.results, call.inputs[0]], key=lambda x: x.numel())
    return "gather", _pieces(call, moved), 1


def _scatter(call: _Dispatched) -> Form:
    """Return the form of an operation that writes pieces by index; sizes as of a gather."""
    gradients = call.name == "embedding_dense_backward"
    moved = max(call.inputs[not gradients :], key=lambda x: x.numel())
    return "scatter", _pieces(call, moved), 1


def _pieces(call: _Dispatched, moved: Any) -> tuple[int, int]:
    """Return the number of contiguous pieces of memory that an index picks, and their entries."""
    by_entry = call.name in SINGLE_ENTRY_INDEX or moved.dim() == 0
    run = 1 if by_entry else max(1, moved.shape[-1])
    return max(1, moved.numel() // run), run


def _fused(call: _Dispatched) -> Form:
    """Return the form of fused attention; sizes: batch·heads, queries, keys, widths of k and v."""
    backward = "backward" in call.name
    q, k, v = call.inputs[1:4] if backward else call.inputs[:3]
    causal = next((arg for arg in call.args if isinstance(arg, bool)), False)
    sizes = q.shape[0] * q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]
    return "fused causal" if causal else "fused", sizes, 1


#: Functions that return the form of an operation; all other operations are pointwise.
FORM_RULES: dict[str, Callable[[_Dispatched], Form]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _fourier),
    **dict.fromkeys(("gather", "index_select", "index", "embedding", "searchsorted"), _gather),
    **dict.fromkeys((
        "scatter", "index_copy", "scatter_add", "index_add", "index_put", "_index_put_impl",
        "embedding_dense_backward",
    ), _scatter),
}  # fmt: skip


def _entries(call: _Dispatched) -> Form:
    """Return the form of a pointwise operation, by the pattern of memory access.

    Sizes: entries, or for a strided pattern entries of a run and their distance.
    """
    target = max(call.results or call.inputs, key=lambda x: x.numel())
    largest = max([target, *call.inputs], key=lambda x: x.numel())
    shape = tuple(largest.shape)
    full_inputs = {id(x) for x in call.inputs if x.numel() == largest.numel() and x is not target}
    strides = [s for x in (target, *call.inputs) if (s := spread_strides(x, shape)) is not None]
    runs, stride = loops(shape, strides)
    pattern, count = _pattern(call, len(full_inputs)), largest.numel()
    if stride > 1:
        return f"strided {pattern}", (count // runs, stride), runs
    return pattern, (count,), runs


def _pattern(call: _Dispatched, full_inputs: int) -> str:
    """Return the table of a pointwise operation, by the number of full-size tensors it reads."""
    if call.name in FILLS:
        return "fill"
    if call.full_name == "copy_":
        return "unary"
    if call.full_name.endswith("_"):
        return "binary in place" if full_inputs else "in place"
    return ("fill", "unary", "binary")[min(full_inputs, 2)]


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
    ``strides``: those of each tensor, broadcast to ``shape``, the result first. For a (4, 8) result
    and a transposed operand, with strides (8, 1) and (1, 4), the loop of 8 starts 4 times, and its
    largest stride is 4.
    """
    if not strides:
        return 1, 1
    dims = sorted((i for i in range(len(shape)) if shape[i] > 1), key=lambda i: -strides[0][i])
    if not dims:
        return 1, 1
    dims.reverse()  # from inside
    length = shape[dims[0]]
    for inside, outside in pairwise(dims):
        if any(stride[outside] != stride[inside] * shape[inside] for stride in strides):
            break
        length *= shape[outside]
    return max(1, prod(shape) // length), max(stride[dims[0]] for stride in strides)
