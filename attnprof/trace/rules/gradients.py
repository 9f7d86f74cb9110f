"""Gradients of products and extremes, as torch computes them without a dispatch mode.

Under a mode torch takes a longer way, right for any values. These formulas are those of plain
tensors without zeros and NaNs. Source: torch's torch/csrc/autograd/FunctionsManual.cpp and
aten/src/ATen/native/ReduceOps.cpp.
"""

from collections.abc import Callable
from typing import Any

#: The input's gradient, from the node, its input, its result and the result's gradient.
Gradient = Callable[[Any, Any, Any, Any], Any]


def _dimension(node: Any) -> int:
    """Return the node's dimension; a negative one is saved as an unsigned number."""
    dim: int = node._saved_dim
    return dim - 2**64 if dim >= 2**63 else dim


def _product(_node: Any, x: Any, y: Any, grad: Any) -> Any:
    if x.dim() == 0:
        return grad
    x = x.to(grad.dtype)
    x.eq(0)  # its places are looked up: there are none
    return grad * (y / x)


def _products(node: Any, x: Any, y: Any, grad: Any) -> Any:
    if x.dim() == 0:
        return grad
    x, dim = x.to(grad.dtype), _dimension(node)
    if not node._saved_keepdim:
        grad, y = grad.unsqueeze(dim), y.unsqueeze(dim)
    zeros = x.eq(0)
    zeros_in_rows = zeros.sum(dim, keepdim=True)
    zeros_in_rows.sum()
    return grad * (y / x)


def _products_so_far(node: Any, x: Any, y: Any, grad: Any) -> Any:
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


def _extreme(_node: Any, x: Any, y: Any, grad: Any) -> Any:
    """Return the gradient of a maximum, minimum or median, shared by all entries equal to it."""
    y.isnan()
    where = x.eq(y)
    zeros = grad.new_zeros(x.shape)
    return zeros.masked_fill_(where, grad / where.sum())


#: Gradients of ``self``, by the name of autograd's node.
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
#: The node for the value that fills masked entries: it picks those out, however many.
_SELECTING = "MaskedFillBackward1"


def depends_on_values(nodes: list[Any]) -> list[str]:
    """Return a note if the gradient of one of the nodes takes longer for some values."""
    if not any(node.name() in _PRODUCTS for node in nodes):
        return []
    note = "the backward pass of prod and cumprod is that of entries none of which is zero"
    return [f"{note}; with zeros torch takes a longer way"]


def told_apart(output: Any) -> list[Any]:
    """Return the nodes behind an output whose gradient differs without a mode."""
    seen, waiting = set[Any](), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return [node for node in seen if node.name() in {*_GRADIENTS, _SELECTING}]


def selects(node: Any) -> str:
    """Return the operation by which a node picks as many entries as values say, or ""."""
    return "masked_select" if node.name() == _SELECTING else ""


def gradients_of(node: Any, found: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    """Return a node's gradients as without a mode; ``found`` are those under the mode."""
    if selects(node):  # what is picked out is not known
        return (None if found[0] is None else grad.clone(), *found[1:])
    saved = (node._raw_saved_self, node._raw_saved_result)
    if any(tensor.unpack_hook is not None for tensor in saved):
        x, y = found[0], grad  # a checkpoint hands them out once; these are of the same shapes
    else:
        x, y = node._saved_self, node._saved_result
    return (_GRADIENTS[node.name()](node, x, y, grad), *found[1:])
