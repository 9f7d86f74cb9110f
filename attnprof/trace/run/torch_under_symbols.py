"""Make torch's functions run the same operations under symbolic sizes as under numbers.

Under symbols torch decomposes some operations, or fixes sizes; a run would then count others.
"""

import numbers
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import _meta_registrations
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention.bias import CausalBias
from torch.utils._pytree import tree_map_only

from attnprof.trace.rules.recurrent import CELLS, LAYERS
from attnprof.trace.rules.replacements import FAST_PATHS, RESIZED
from attnprof.trace.run import remainders
from attnprof.trace.run.symbols import foreign_modules, names_of

_COMPOSITE: Any = torch._C.DispatchKey.CompositeImplicitAutograd


def _batches_of_products(*args: Any) -> Any:
    """Return torch's decomposition of ``matmul``, with a result that is no view.

    A view that is changed in place would be copied.
    """

    def apart(x: Any, shape: Any) -> Any:
        return torch.ops.aten._unsafe_view(x, shape)

    with patch.object(torch.Tensor, "view", apart):
        return decompositions.matmul(*args)


_select_backend: Any = torch._C._select_conv_backend


def _backend(*tensors: Any, **how: Any) -> Any:
    """Return the library for a convolution at the hints: torch compares the batch with 16."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(plain(list(value.shape)), [0] * value.dim())
        return tree_map_only(torch.SymInt, lambda size: size.node.hint, value)

    with unset_fake_temporarily():
        settings = {name: plain(value) for name, value in how.items()}
        return _select_backend(*map(plain, tensors), **settings)


def _resized(operation: Any, image: Any, size: Any, *how: Any) -> Any:
    """Return resized images, by one operation; ``how`` ends with factors of their sides."""
    scales, torchs = how[-1], vars(decompositions)
    size = torchs["upsample_compute_output_size"](image.shape, size, scales)
    each = [torchs["get_scale_value"](scales, side) for side in range(len(size))]
    return operation.default(image, size, *how[:-1], *each)


_unfold: Any = torch.Tensor.unfold
_scripted_call: Any = torch.jit.ScriptFunction.__call__


def _windows(tensor: torch.Tensor, dimension: int, size: Any, step: Any) -> Any:
    """Return windows of a dimension; of symbolic sizes, too, if no gradient is needed."""
    graded = tensor.requires_grad and torch.is_grad_enabled()
    if graded or not any(isinstance(x, torch.SymInt) for x in (size, step)):
        return _unfold(tensor, dimension, size, step)
    sizes, strides = [*tensor.shape, size], list(tensor.stride())
    strides.append(strides[dimension])
    place = dimension % tensor.dim()
    sizes[place] = (sizes[place] - size) // step + 1
    strides[place] *= step
    return tensor.as_strided(sizes, strides)


def _indexing(plain: Any) -> Any:
    """Return ``__getitem__`` or ``__setitem__`` to which a slice of all rows has no gradient.

    Torch asks whether a symbolic end is the last row without making a condition of it, and would
    write the gradient of all rows into zeros. It always does so where a slice is the whole index.
    """

    def indexed(tensor: torch.Tensor, index: Any, *value: Any) -> Any:
        items = index if isinstance(index, tuple) else ()
        sliced = any(isinstance(item, slice) and item.stop is not None for item in items)
        if sliced and torch.is_grad_enabled():
            index = _without_full_slices(tensor, items)
        return plain(tensor, index, *value)

    return indexed


def _without_full_slices(tensor: torch.Tensor, items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index with ``:`` for slices of all rows, which become conditions on sizes."""
    taken = [_dimensions_taken(item) for item in items]
    left = tensor.dim() - sum(taken)
    kept, place = list[Any](), 0
    for item, dims in zip(items, taken, strict=True):
        full = place < tensor.dim() and _is_full(item, tensor.shape[place])
        kept.append(slice(None) if full else item)
        place += left if item is Ellipsis else dims
    return tuple(kept)


def _is_full(item: Any, size: Any) -> bool:
    """Return whether an item of an index is a slice of all rows, where symbols say so."""
    ends = (size, item.stop) if isinstance(item, slice) else ()
    if not any(isinstance(end, torch.SymInt) for end in ends):
        return False
    starts = item.start is None or (type(item.start) is int and item.start == 0)
    return bool(starts and item.stop is not None and item.step in (None, 1) and size <= item.stop)


def _dimensions_taken(item: Any) -> int:
    """Return how many dimensions an item of an index addresses."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    is_mask = isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)
    return item.dim() if is_mask else 1


def _taken_along(x: Any, indices: Any, dim: Any = None) -> Any:
    """Return ``take_along_dim`` as torch composes it, which makes numbers of sizes."""
    if dim is None:
        return x.view(-1).gather(0, indices.view(-1))
    shape: Callable[..., Any] = torch.broadcast_shapes
    wide, places = list(x.shape), list(indices.shape)
    wide[dim], places[dim] = indices.shape[dim], x.shape[dim]
    everywhere = indices.broadcast_to(shape(wide, indices.shape))
    rows = x.broadcast_to(shape(places, x.shape))
    return rows.gather(dim, everywhere.remainder(x.shape[dim]))  # negative ones count from the end


def _kronecker(x: Any, y: Any) -> Any:
    """Return ``kron`` as torch composes it, which makes numbers of sizes."""
    dims = max(x.dim(), y.dim())
    outer, inner = ([1] * (dims - z.dim()) + list(z.shape) for z in (x, y))
    apart = torch.ops.aten._unsafe_view
    each = apart(x, [n for size in outer for n in (size, 1)])
    products = each * apart(y, [n for size in inner for n in (1, size)])
    return apart(products, [n * m for n, m in zip(outer, inner, strict=True)])


def _points(plain: Any) -> Any:
    """Return ``linspace`` or ``logspace`` for symbolic numbers of points, which torch fixes."""

    def points(*args: Any, **how: Any) -> Any:
        steps = how.get("steps", args[2] if len(args) > 2 else None)
        if not isinstance(steps, torch.SymInt):
            return plain(*args, **how)
        dtype = how.get("dtype") or torch.get_default_dtype()
        how = {"dtype": dtype, "device": how.get("device")}
        return torch.arange(steps, **how)  # type: ignore[call-overload]  # of as many bytes

    return points


def _triangle(plain: Any, parts: Callable[..., Any]) -> Any:
    """Return ``tril_indices`` or ``triu_indices`` for symbolic sizes, which torch fixes.

    ``parts`` returns the entries of the triangle's two parts first.
    """

    def indices(row: Any, col: Any, offset: Any = 0, **how: Any) -> Any:
        if not any(isinstance(size, torch.SymInt) for size in (row, col, offset)):
            return plain(row, col, offset, **how)
        entries = sum(parts(row, col, offset)[:2])
        how = {"dtype": how.get("dtype") or torch.int64, "device": how.get("device")}
        return torch.zeros(2, entries, **how)  # of as many bytes

    return indices


def _spectra(
    x: Any, points: Any, hop: Any = None, width: Any = None, window: Any = None,
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:  # fmt: skip
    """Return ``stft`` as torch composes it, which makes numbers of sizes."""
    hop, width = hop or points // 4, width or points
    rows = x if x.dim() == 2 else x.unsqueeze(0)
    if window is None:
        window = torch.ones(width, dtype=x.dtype, device=x.device)
    if width < points:
        left = (points - width) // 2
        padded = torch.zeros(points, dtype=window.dtype, device=x.device)
        padded.narrow(0, left, width).copy_(window)
        window = padded
    moments = 1 + (rows.shape[1] - (width if align_to_window else points)) // hop
    step = rows.stride(1)
    cut = rows.as_strided((rows.shape[0], moments, points), (rows.stride(0), hop * step, step))
    waves = cut.mul(window)
    if x.is_complex():
        spectra = torch.ops.aten._fft_c2c(waves, [2], int(normalized), True)
    else:
        spectra = torch.ops.aten._fft_r2c(waves, [2], int(normalized), onesided is not False)
    spectra = spectra.transpose_(1, 2)
    spectra = spectra if x.dim() == 2 else spectra.squeeze_(0)
    return spectra if return_complex else torch.view_as_real(spectra)


@cache
def _affine(function: Any) -> Any:
    """Return ``linear`` as torch.func composes it, which makes numbers of sizes."""

    def affine(x: Any, weight: Any, bias: Any = None) -> Any:
        transformed = torch._C._functorch.maybe_current_level() is not None
        if not transformed or x.dim() != 3 or bias is None or not x.is_contiguous():
            return function(x, weight, bias)
        columns, (batch, tokens, width) = weight.t(), x.shape
        out = torch.addmm(bias, x.view(batch * tokens, width), columns)
        return out.view(batch, tokens, out.shape[1])

    return affine


@cache
def _decided(function: Any) -> Any:
    """Return a function of torch's for which sizes decide: it takes no symbolic truth value.

    Such as ``scaled_dot_product_attention(…, is_causal=n > 1)`` and ``cond(n > 64, …)``.
    """

    def decided(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.SymBool, bool, (args, kwargs))
        biased = any(isinstance(x, CausalBias) for x in (*args, *kwargs.values()))
        return (CausalBias._dispatch if biased else function)(*args, **kwargs)

    return decided


def _unscripted(plain: Any) -> Any:
    """Return a call of a scripted function that runs its Python, as a script fixes sizes."""

    def called(scripted: Any, *args: Any, **kwargs: Any) -> Any:
        python = getattr(scripted, "_torchdynamo_inline", None)
        return python(*args, **kwargs) if python else plain(scripted, *args, **kwargs)

    return called


#: Functions that are given truth values which sizes decide.
_DECIDED = (torch.nn.functional.scaled_dot_product_attention, torch.cond)


def _import_places() -> Iterator[tuple[Any, str, Any]]:
    """Yield the modules and names under which decided functions are imported, and each of these."""
    named = [x for x in foreign_modules() if x.__name__.partition(".")[0] != "attnprof"]
    yield from names_of(_DECIDED, (torch, torch.nn.functional, *named))


@contextmanager
def as_under_numbers() -> Iterator[None]:
    """Make torch take the paths inside, under symbolic sizes, that it takes under numbers.

    Patched are dropout, resizing of images, windows, normalization and recurrent layers, attention
    and its fast paths: these would take other paths, or fix sizes.
    """
    names = "dropout softshrink softshrink_backward hardshrink hardshrink_backward"
    plain: list[Any] = [getattr(torch.ops.aten, name).default for name in names.split()]
    composed = {
        torch.ops.aten.matmul.default: _batches_of_products,
        torch.ops.aten.take_along_dim.default: _taken_along,
        torch.ops.aten.kron.default: _kronecker,
        torch.ops.aten.stft.default: _spectra,
        **CELLS,
    }
    for name in RESIZED:
        operation = getattr(torch.ops.aten, name)
        plain.append(operation.default)
        composed[operation.vec] = partial(_resized, operation)
    whole = (numbers.Integral, torch.SymInt)  # as norms ask, torch's and others'
    with (
        ExitStack() as stack,
        patch.object(numbers, "Integral", whole),
        patch.multiple(torch, **FAST_PATHS),
        patch.object(torch._C, "_select_conv_backend", _backend),
        patch.object(torch.Tensor, "unfold", _windows),
        patch.object(torch.jit.ScriptFunction, "__call__", _unscripted(_scripted_call)),
        patch.object(torch.nn.functional, "linear", _affine(torch.nn.functional.linear)),
        patch.object(torch.Tensor, "__getitem__", _indexing(torch.Tensor.__getitem__)),
        patch.object(torch.Tensor, "__setitem__", _indexing(torch.Tensor.__setitem__)),
        patch.multiple(torch, linspace=_points(torch.linspace), logspace=_points(torch.logspace)),
        patch.multiple(
            torch,
            tril_indices=_triangle(torch.tril_indices, vars(torch._refs)["_get_tril_sizes"]),
            triu_indices=_triangle(torch.triu_indices, vars(torch._refs)["_get_triu_sizes"]),
        ),
        patch.multiple(decompositions, **LAYERS),
        # torch 2.11 asks whether a window's step divides sizes
        patch.object(_meta_registrations, "div_rtn", operator.floordiv),
    ):
        for patched in remainders.patches():
            stack.enter_context(patched)
        for place, name, function in _import_places():
            stack.enter_context(patch.object(place, name, _decided(function)))
        for operation in plain:
            stack.enter_context(patch.dict(operation.py_kernels, clear=True))
            stack.enter_context(patch.dict(operation._dispatch_cache, clear=True))
        for operation, kernel in composed.items():
            stack.enter_context(patch.dict(operation.py_kernels, {_COMPOSITE: kernel}))
            stack.enter_context(patch.dict(operation._dispatch_cache, clear=True))
        yield
