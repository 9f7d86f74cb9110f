"""Gradients that torch computes in another way where no mode watches it.

Products and extremes of all entries look at the values of plain tensors: entries that are zero, a
largest one that is not a number. Under a dispatch mode they take a way that is right for any
values, and longer. Here is the way of plain tensors without such entries. Source: torch's
torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native/ReduceOps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Gradient = Callable[[Any, Any], Any]


def _self_and_result(node: Any) -> tuple[Any, Any]:
    return node._saved_self, node._saved_result


def _dimension(node: Any) -> int:
    """Negative ones are shown as unsigned numbers."""
    dim: int = node._saved_dim
    return dim - 2**64 if dim >= 2**63 else dim


def _product(node: Any, grad: Any) -> Any:
    x, y = _self_and_result(node)
    if x.dim() == 0:
        return grad
    x = x.to(grad.dtype)
    x.eq(0)  # its places are looked up: there are none
    return grad * (y / x)


def _products(node: Any, grad: Any) -> Any:
    x, y = _self_and_result(node)
    if x.dim() == 0:
        return grad
    x, dim = x.to(grad.dtype), _dimension(node)
    if not node._saved_keepdim:
        grad, y = grad.unsqueeze(dim), y.unsqueeze(dim)
    zeros = x.eq(0)
    zeros_in_rows = zeros.sum(dim, keepdim=True)
    zeros_in_rows.sum()
    return grad * (y / x)


def _products_so_far(node: Any, grad: Any) -> Any:
    x, y = _self_and_result(node)
    dim = _dimension(node)
    if x.dim() == 0 or x.numel() <= 1 or x.shape[dim] == 1:
        return grad
    weighted = y * grad.to(x.dtype)
    zeros = x.eq(0)
    zeros.any()
    return _summed_from_the_end(weighted, dim) / x


def _summed_from_the_end(x: Any, dim: int) -> Any:
    turned = x.flip(dim)
    sums = turned.cumsum(dim)
    return sums.flip(dim)


def _extreme(node: Any, grad: Any) -> Any:
    """Among all entries that are the largest."""
    x, y = _self_and_result(node)
    y.isnan()
    where = x.eq(y)
    zeros = grad.new_zeros(x.shape)
    return zeros.masked_fill_(where, grad / where.sum())


#: By the name of autograd's node; each gives the gradient of ``self``.
_GRADIENTS: dict[str, Gradient] = {
    "ProdBackward0": _product,
    "ProdBackward1": _products,
    "CumprodBackward0": _products_so_far,
    "MaxBackward1": _extreme,
    "MinBackward1": _extreme,
    "MedianBackward0": _extreme,
    "NanmedianBackward0": _extreme,
}
_PRODUCTS = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})
#: The gradient of a value that fills masked entries: those are picked out, however many.
_SELECTING = "MaskedFillBackward1"


def depends_on_values(nodes: list[Any]) -> list[str]:
    """A note where a gradient takes more for some values."""
    names = {node.name() for node in nodes}
    found = []
    if names & _PRODUCTS:
        found.append(
            "the backward pass of prod and cumprod is that of entries none of which is zero; with "
            "zeros torch takes a longer way"
        )
    if _SELECTING in names:
        found.append(
            "peak_bytes is not exact: the gradient of the value that masked_fill puts in takes as "
            "much as entries are masked; all of them are assumed to be"
        )
    if any(node.name() in _GRADIENTS and not can_be_asked(node) for node in nodes):
        found.append(
            "peak_bytes is at most: inside a checkpoint, the gradients of products, extremes and "
            "medians are counted in a longer way than torch takes"
        )
    return found


def told_apart(output: Any) -> list[Any]:
    """The nodes behind an output whose gradient is another one without a mode."""
    named = {*_GRADIENTS, _SELECTING}
    return [node for node in _behind(output) if node.name() in named]


def can_be_asked(node: Any) -> bool:
    """Whether the gradient is known here, and saved tensors may be looked at more than once."""
    if node.name() not in _GRADIENTS:
        return False
    saved = (node._raw_saved_self, node._raw_saved_result)
    return all(tensor.unpack_hook is None for tensor in saved)


def gradient_of(node: Any, grad: Any) -> Any:
    """The gradient as it runs without a mode."""
    return _GRADIENTS[node.name()](node, grad)


def _behind(output: Any) -> Iterator[Any]:
    seen, waiting = set[Any](), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
            yield node
