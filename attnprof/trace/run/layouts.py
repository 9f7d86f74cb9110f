"""Layouts of results that sizes alone tell, without the many questions that torch asks of symbols.

Only where nothing depends on how large a size is: all are numbers, or sums of products of symbols,
which are two or more, and operands that are combined have the same ones. Torch is asked of all
else, and its questions become conditions of the domain.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import sympy
import torch

#: Sizes, strides and offset.
Layout = tuple[Sequence[Any], Sequence[Any], Any]
#: A result: the operand that it is a view of by its place, None of a new one; without a layout it
#: is the operand itself.
Result = tuple[int | None, Layout | None]
Rule = Callable[..., Result | None]

#: Functions of each entry, whose results have their operands' number format.
_POINTWISE = (
    "abs", "add", "addcmul", "clamp", "cos", "div", "exp", "gelu", "gelu_backward", "log",
    "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "relu", "rsqrt", "sigmoid",
    "sigmoid_backward", "silu", "silu_backward", "sin", "softplus", "sqrt", "sub", "tanh",
    "tanh_backward",
)  # fmt: skip


def laid_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result | None:
    """The result of an operation on tensors of symbolic sizes; None where torch is to be asked."""
    rule = _rules().get(func)
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    large = tensors and all(_is_large(size) for tensor in tensors for size in tensor.shape)
    return rule(tensors, *args, **kwargs) if rule and large else None


def _is_large(size: Any) -> bool:
    """Whether it is a number, or two or more whatever the symbols are."""
    return size > 0 if type(size) is int else bool(_is_sum(_named(size)))


def _named(size: Any) -> Any:
    return size if type(size) is int else size.node.expr


@cache
def _is_sum(expression: Any) -> bool:
    """Whether it adds up products of symbols, each of which is two or more."""
    if expression.is_Add:
        return all((part.is_Integer and part > 0) or _is_sum(part) for part in expression.args)
    factors = expression.args if expression.is_Mul else (expression,)
    return bool(expression.free_symbols) and all(
        (factor.is_Integer and factor > 0)
        or factor.is_Symbol
        or (factor.is_Pow and factor.base.is_Symbol and factor.exp.is_Integer and factor.exp > 0)
        for factor in factors
    )


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return [*map(_named, one)] == [*map(_named, other)]


# -- dense layouts ------------------------------------------------------------------------
def _rows(sizes: Sequence[Any]) -> list[Any]:
    """Strides of rows that follow one another."""
    strides = [1] * len(sizes)
    for place in range(len(sizes) - 2, -1, -1):
        strides[place] = strides[place + 1] * sizes[place + 1]
    return strides


def _in_rows(tensor: Any) -> bool:
    """Whether rows follow one another; the stride of a size of 1 says nothing."""
    pairs = zip(tensor.shape, tensor.stride(), _rows(tensor.shape), strict=True)
    return all(_named(size) == 1 or _named(a) == _named(b) for size, a, b in pairs)


@cache
def _order(one: Any, other: Any) -> int | None:
    """-1, 0 or 1 where a stride is smaller, the same or larger whatever sizes are; else None."""
    if one == other:
        return 0
    for sign, ratio in ((1, sympy.Integer(1) * one / other), (-1, sympy.Integer(1) * other / one)):
        if (ratio.is_Integer and ratio > 1) or _is_sum(ratio):
            return sign
    return None


def _before(tensors: Sequence[Any], sizes: Sequence[Any], one: int, other: int) -> int | None:
    """Whether a dimension lies outside (1) or inside (-1) of another in the first that tells."""
    for tensor in tensors:
        strides = [
            0 if i < 0 or _named(tensor.shape[i]) != _named(sizes[place]) else tensor.stride(i)
            for place in (one, other)
            for i in [place - len(sizes) + tensor.dim()]
        ]
        if any(type(stride) is int and stride == 0 for stride in strides):
            continue
        found = _order(*map(_named, strides))
        if found is None or found:
            return found
        larger = _order(_named(sizes[one]), _named(sizes[other]))
        if larger is None or larger > 0:
            return larger
    return 0


def _like(tensors: Sequence[Any], sizes: Sequence[Any]) -> Result | None:
    """A new one with dimensions in the order that operands have them in memory, as torch's are."""
    if all(map(_in_rows, tensors)):
        return _new(sizes)
    order = list(range(len(sizes)))[::-1]  # from the innermost
    for place in range(1, len(order)):
        here = place
        for inner in range(place - 1, -1, -1):
            way = _before(tensors, sizes, order[inner], order[here])
            if way is None:
                return None
            if way < 0:
                break
            if way > 0:
                order[inner], order[here] = order[here], order[inner]
                here = inner
    rows = _rows([sizes[place] for place in order[::-1]])[::-1]
    strides = [rows[order.index(place)] for place in range(len(sizes))]
    return None, (tuple(sizes), tuple(strides), 0)


def _new(sizes: Sequence[Any]) -> Result:
    return None, (tuple(sizes), tuple(_rows(sizes)), 0)


def _together(tensors: Sequence[Any]) -> list[Any] | None:
    """The sizes of several spread over one another; None where some may not fit."""
    dims = max(tensor.dim() for tensor in tensors)
    found: list[Any] = [1] * dims
    for tensor in tensors:
        for place, size in enumerate(tensor.shape, dims - tensor.dim()):
            if _named(found[place]) == 1:
                found[place] = size
            elif _named(size) not in (1, _named(found[place])):
                return None
    return found


# -- operations ---------------------------------------------------------------------------
def _pointwise(tensors: Sequence[Any], *args: Any, **named: Any) -> Result | None:
    others = (x for x in (*args, *named.values()) if not isinstance(x, torch.Tensor))
    kinds = {(tensor.dtype, tensor.fake_device) for tensor in tensors}
    plain = all(x is None or isinstance(x, int | float | str) for x in others)
    if not plain or len(kinds) > 1 or not tensors[0].is_floating_point():
        return None
    sizes = _together(tensors)
    return None if sizes is None else _like(tensors, sizes)


def _written(tensors: Sequence[Any], *args: Any, **_how: Any) -> Result | None:
    """The first operand, changed in place by what fits it."""
    sizes = _together(tensors)
    fits = sizes is not None and args[0] is tensors[0] and _same(sizes, args[0].shape)
    return (0, None) if fits else None


def _cloned(_: Any, x: Any, *, memory_format: Any = None) -> Result | None:
    if memory_format == torch.contiguous_format:
        return _new(x.shape)
    return _like([x], x.shape) if memory_format in (None, torch.preserve_format) else None


def _product(_: Any, x: Any, y: Any) -> Result | None:
    """One matrix product, or a batch of them."""
    *batch, rows, inner = x.shape
    fits = _same([*batch, inner], y.shape[:-1]) and x.dtype == y.dtype
    return _new((*batch, rows, y.shape[-1])) if fits else None


def _summed(_: Any, x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Result | None:
    if not dim or not x.is_floating_point() or dtype not in (None, x.dtype):
        return None
    gone = {place % x.dim() for place in dim}
    kept = ([1] if place in gone else [size] for place, size in enumerate(x.shape))
    return _new([n for place, of in enumerate(kept) for n in of if keepdim or place not in gone])


def _put_back(_: Any, _grad: Any, sizes: Any, *_where: Any) -> Result | None:
    """The gradient of what a part was taken of."""
    return _new(sizes) if all(map(_is_large, sizes)) else None


# -- views --------------------------------------------------------------------------------
def _view(x: Any, sizes: Sequence[Any], strides: Sequence[Any], more: Any = 0) -> Result:
    return 0, (tuple(sizes), tuple(strides), x.storage_offset() + more)


def _itself(_: Any, x: Any) -> Result:
    return _view(x, x.shape, x.stride())


def _transposed(_: Any, x: Any, one: int, other: int) -> Result:
    order = list(range(x.dim()))
    order[one], order[other] = order[other], order[one]
    return _permuted(_, x, order)


def _permuted(_: Any, x: Any, order: Sequence[int]) -> Result:
    return _view(x, [x.shape[i] for i in order], [x.stride(i) for i in order])


def _instead(
    x: Any, place: int, size: Sequence[Any], stride: Sequence[Any], more: Any = 0
) -> Result:
    """A view with other dimensions, or none, in the place of one; of what begins further on."""
    sizes, strides, end = list(x.shape), list(x.stride()), place + 1
    sizes[place:end], strides[place:end] = size, stride
    return _view(x, sizes, strides, more)


def _widened(_: Any, x: Any, dim: int) -> Result:
    place = dim % (x.dim() + 1)
    if place == x.dim():
        return _view(x, [*x.shape, 1], [*x.stride(), 1])
    size, stride = x.shape[place], x.stride(place)
    return _instead(x, place, [1, size], [size * stride, stride])


def _squeezed(_: Any, x: Any, dim: int) -> Result | None:
    return _instead(x, dim % x.dim(), [], []) if x.dim() and _named(x.shape[dim]) == 1 else None


def _selected(_: Any, x: Any, dim: int, index: Any) -> Result | None:
    size = x.shape[dim]
    if type(size) is not int or type(index) is not int or not -size <= index < size:
        return None
    return _instead(x, dim % x.dim(), [], [], index % size * x.stride(dim))


def _cut(
    _: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Result | None:
    place = dim % x.dim()
    size, ends = x.shape[place], (start, end, step)
    if any(type(e) not in (int, type(None)) for e in ends) or type(size) is not int:
        return None
    turns = range(size)[start:end:step]
    if not turns:
        return None
    stride = x.stride(place)
    return _instead(x, place, [len(turns)], [stride * step], turns[0] * stride)


def _spread(_: Any, x: Any, sizes: Sequence[Any], *, implicit: bool = False) -> Result | None:
    more = len(sizes) - x.dim()
    if implicit or any(_named(size) in (1, -1) for size in sizes[:more]):
        return None
    found, strides = list(sizes), [0] * more + list(x.stride())
    for place, own in enumerate(x.shape, more):
        wanted = _named(sizes[place])
        if wanted in (-1, _named(own)):
            found[place] = own
        elif _named(own) == 1:
            strides[place] = 0
        else:
            return None
    return _view(x, found, strides) if all(map(_is_large, found)) else None


def _viewed(_: Any, x: Any, sizes: Sequence[Any]) -> Result | None:
    """Rows that follow one another, seen in other sizes."""
    if not all(map(_is_large, sizes)) or not _in_rows(x):
        return None
    same = _named(prod(sizes)) == _named(prod(x.shape))
    return _view(x, sizes, _rows(sizes)) if same else None


@cache
def _rules() -> dict[Any, Rule]:
    aten = torch.ops.aten
    rules: dict[Any, Rule] = {
        aten.clone.default: _cloned, aten.bmm.default: _product, aten.mm.default: _product,
        aten.copy_.default: _written,
        aten.sum.dim_IntList: _summed, aten.select_backward.default: _put_back,
        aten.slice_backward.default: _put_back, aten.detach.default: _itself,
        aten.alias.default: _itself, aten.transpose.int: _transposed,
        aten.permute.default: _permuted, aten.unsqueeze.default: _widened,
        aten.squeeze.dim: _squeezed, aten.select.int: _selected, aten.slice.Tensor: _cut,
        aten.expand.default: _spread, aten.view.default: _viewed,
        aten._unsafe_view.default: _viewed, aten.rsub.Scalar: _pointwise,
    }  # fmt: skip
    for name in _POINTWISE:  # those that make one tensor, or write to the first
        for own, rule in ((name, _pointwise), (f"{name}_", _written)):
            packet = getattr(aten, own, None)
            funcs = [getattr(packet, kind) for kind in packet.overloads()] if packet else []
            rules |= {f: rule for f in funcs if "out" not in f._overloadname}
    for func in (aten.rsub.Tensor, aten.threshold_backward.default):  # their kernels ask the second
        rules[func] = lambda tensors, *args, **how: _pointwise(tensors[::-1], *args, **how)
    return rules
