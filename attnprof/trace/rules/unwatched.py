"""Record operations as autograd runs them without a dispatch mode, which changes some of them.

Backward formulas, sums of gradients that meet, and some composed functions ask whether any tensor
"looks like a subclass"; under a mode all do, and they work out of place. :class:`Watch` gives the
operations as they run without the mode, :func:`gradients_of` the gradients of products and extremes
of plain tensors without zeros and NaNs.

Sources: torch's aten/src/ATen/TensorSubclassLikeUtils.h and who includes it,
autograd/input_buffer.cpp, torch/csrc/autograd/FunctionsManual.cpp and
aten/src/ATen/native/ReduceOps.cpp.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from operator import itemgetter
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch._C import _current_autograd_node
from torch.nn import functional
from torch.utils import _python_dispatch

from attnprof.trace.rules import replacements
from attnprof.trace.rules.table import tensors_in

aten = torch.ops.aten

#: Operations by which backward formulas write a gradient into zeros made just before.
_PLACING = frozenset({
    aten.scatter_add.default, aten.scatter.src, aten.index_add.default, aten.index_put.default,
    aten.put.default, aten.masked_scatter.default, aten.index_fill.int_Scalar,
})  # fmt: skip
_ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
#: Nodes that go on in a tensor they have just made, and the operations by which they do.
_CONTINUING = frozenset({"ClampBackward0", "BinaryCrossEntropyWithLogitsBackward0"})
_STEPS = frozenset({
    aten.sub.Tensor, aten.mul.Tensor, aten.logical_and.default, aten.logical_or.default,
})  # fmt: skip
#: Nodes that add up tensors they have made, never in place.
_SUMMING = frozenset({
    "Atan2Backward0", "LinalgCholeskyExBackward0", "StdMeanBackward0", "VarMeanBackward0",
})  # fmt: skip
#: Functions that add to their own result in place; recurrent layers do so in linear maps.
_ADDING = ("linear", "scaled_dot_product_attention")
_RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")
#: Functions of singular values, for which a watched torch computes singular vectors, too.
_SINGULAR = ("svdvals", "norm", "matrix_norm", "cond", "matrix_rank", "nuclear_norm")
_INSIDE: ContextVar[str] = ContextVar("inside", default="")


@cache
def in_place_of(func: Any) -> Any:
    """Return the operation that writes to its first argument: ``add_`` for ``add``."""
    return getattr(getattr(aten, func._schema.name.partition("::")[2] + "_"), func._overloadname)


class Watch:
    """The state of a run that tells which operations torch would do in place without a mode.

    Make it in the context of the run.
    """

    def __init__(self) -> None:
        self._zeros: Any = 0
        self._node: Any = None
        self._node_storages = set[Any]()
        key = torch._C.DispatchKey.PythonDispatcher
        dispatcher = torch._C._dispatch_tls_is_dispatch_key_included(key)
        self._engine_only = _engine_only(type(torch.zeros(0)), bool(dispatcher))

    def unwatched(
        self, func: Any, args: tuple[Any, ...], frame: FrameType | None
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return an operation, called from ``frame``, and its arguments as without a mode."""
        if func is aten._linalg_svd.default and _INSIDE.get() in _SINGULAR and not _trains(args[0]):
            return func, (args[0], False, False)
        # by the engine where no Python code but autograd's own is between it and the operation
        by_engine = frame is not None and frame.f_code.co_name == "_engine_run_backward"
        zeros, self._zeros = self._zeros, 0 if func is not aten.detach.default else self._zeros
        if func is aten.add.Tensor:
            # the last step of a function that adds to its own result, or gradients that meet
            inside = _INSIDE.get()
            adds = inside in _ADDING or (inside in _RECURRENT and args[1].dim() == 1)
            meets = isinstance(args[1], torch.Tensor) and args[0].dim() == args[1].dim()
            # the engine reuses a gradient that nobody else holds
            meets &= by_engine and _holders(args[0]) == self._engine_only
            node = _current_autograd_node()
            sums = node is not None and node.name() in _SUMMING
            placed = adds or (meets and not sums)
        else:
            new = by_engine and func in _PLACING and zeros == args[0].untyped_storage()._cdata
            placed = new or (by_engine and self._continues(func, args))
        return in_place_of(func) if placed else func, args

    def _continues(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether a backward node goes on in a tensor that it has made itself."""
        node = _current_autograd_node()
        if node is None or node.name() not in _CONTINUING:
            self._node = None
            return False
        if node is not self._node:
            self._node, self._node_storages = node, set()
        return func in _STEPS and args[0].untyped_storage()._cdata in self._node_storages

    def observe(self, func: Any, out: Any) -> None:
        """Remember zeros that an operation made: the next one may write into them."""
        if func in _ZEROS:
            self._zeros = out.untyped_storage()._cdata
        if self._node is not None and func is not aten.neg.default:
            self._node_storages |= {x.untyped_storage()._cdata for x in tensors_in(out)}


def _trains(tensor: Any) -> bool:
    return bool(torch.is_grad_enabled() and tensor.requires_grad)


def _holders(tensor: Any) -> tuple[int, int]:
    """Return how often a tensor and its storage are held."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


@cache
def _engine_only(_kind: type, _dispatched: bool) -> tuple[int, int]:
    """Return how often a tensor is held that only autograd's engine holds, under a mode."""
    counts: list[tuple[int, int]] = []

    class Look(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if func is aten.add.Tensor:
                counts.append(_holders(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad():
        y = torch.zeros(2, requires_grad=True).sin()
        total = y.cos() * y.exp()
        with Look():  # type: ignore[no-untyped-call]
            total.backward(torch.zeros(2))  # type: ignore[no-untyped-call]
    return counts[0]


@contextmanager
def adding_in_place() -> Iterator[None]:
    """Mark functions that run differently under a mode while they run inside."""
    patched = [
        (functional, _ADDING), (torch._C._nn, _ADDING), (torch._VF, _RECURRENT),
        (torch.linalg, _SINGULAR[:-1]), (torch, _SINGULAR[-1:]), (torch._VF, _SINGULAR[-1:]),
    ]  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "max_pool1d", _pooled(torch.max_pool1d)))
        kept = _reporting_state(torch.get_rng_state)  # by checkpoints
        stack.enter_context(patch.object(torch, "get_rng_state", kept))
        for module, names in patched:
            for name in names:
                marked = _with_name(name, getattr(module, name))
                stack.enter_context(patch.object(module, name, marked, create=True))
        yield


@cache
def _with_name(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is known by its name (``_INSIDE``) while it runs.

    ``torch.jit.script`` takes it for the original one.
    """

    def marked(*args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.maybe_current_level() is not None:  # torch.vmap and its like
            return function(*args, **kwargs)
        with ExitStack() as stack:
            stack.callback(_INSIDE.reset, _INSIDE.set(name))
            return function(*args, **kwargs)

    builtins = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    if id(function) in builtins:
        builtins[id(marked)] = builtins[id(function)]
    return marked


@cache
def _pooled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``max_pool1d`` that records one kernel if there are no gradients.

    Under a mode it would run as ``max_pool2d``.
    """

    def pooled(x: Any, *args: Any, **kwargs: Any) -> Any:
        mode = _python_dispatch._get_current_dispatch_mode()
        transformed = torch._C._functorch.maybe_current_level() is not None
        symbolic = any(isinstance(size, torch.SymInt) for size in x.shape)
        if transformed or _trains(x) or not getattr(mode, "records", False):
            by_rows = symbolic and not transformed
            return (
                replacements.pooled(x, *args, **kwargs) if by_rows else function(x, *args, **kwargs)
            )
        with _python_dispatch._pop_mode_temporarily() as recorder:
            return recorder.__torch_dispatch__(aten.max_pool1d.default, (), (x, *args), kwargs)

    return pooled


@cache
def _reporting_state(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return ``get_rng_state`` that reports the tensor it makes, which no operation shows."""

    def kept() -> Any:
        state = function()
        mode: Any = _python_dispatch._get_current_dispatch_mode()
        if getattr(mode, "records", False):
            mode.add(state)
        return state

    return kept


# -- gradients of products and extremes ---------------------------------------------------
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


def _strided(node: Any, gradient: Any, grad: Any) -> Any:
    """Return the gradient of ``as_strided``: entries are added at their places in a storage.

    Torch makes a number of the storage's size, for a list of places, if windows overlap. The result
    lies as ``gradient`` does.
    """
    lines = list(zip(node._saved_size, node._saved_stride, strict=True))
    for place, (size, stride) in reversed([*enumerate(lines)]):
        if size == 1 or stride == 0:
            grad = grad.squeeze(place) if size == 1 else grad.sum(place)
            del lines[place]
    sizes, strides = [list(column) for column in zip(*lines, strict=True)] or [[], []]
    inside = list(zip(gradient.shape, gradient.stride(), strict=True))
    ends = [1 + sum((size - 1) * stride for size, stride in each) for each in (inside, lines)]
    storage = grad.new_zeros(max(ends))
    if _may_overlap(lines):
        places = torch.arange(max(ends), device=grad.device)
        flat = places.as_strided(sizes, strides).reshape(-1)
        storage.index_add_(0, flat, grad.reshape(-1))
    else:
        storage.as_strided(sizes, strides).copy_(grad)
    return storage.as_strided(gradient.shape, gradient.stride())


def _may_overlap(lines: list[tuple[Any, Any]]) -> bool:
    """Return whether a dimension's step is no longer than the dimensions of smaller steps."""
    reached = 0
    for size, stride in sorted(lines, key=itemgetter(1)):
        if stride <= reached:
            return True
        reached = reached + stride * (size - 1)
    return False


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
_OF_PRODUCTS = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})
#: The node of windows, whose gradient has a layout of its own.
_STRIDED = "AsStridedBackward0"
#: The node for the value that fills masked entries: it picks those out, however many.
_SELECTING = "MaskedFillBackward1"


def depends_on_values(nodes: list[Any]) -> list[str]:
    """Return a note if the gradient of a node takes longer for some values."""
    if not any(node.name() in _OF_PRODUCTS for node in nodes):
        return []
    note = "the backward pass of prod and cumprod is that of entries none of which is zero"
    return [f"{note}; with zeros torch takes a longer way"]


def differing_nodes(output: Any) -> list[Any]:
    """Return the nodes behind an output whose gradient differs without a mode."""
    nodes, waiting = set[Any](), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [before for before, _ in node.next_functions]
    return [node for node in nodes if node.name() in {*_GRADIENTS, _SELECTING, _STRIDED}]


def skip_loop(node: Any, is_skipped: Callable[[], bool]) -> None:
    """Show a node one entry while its gradients are skipped: before torch 2.13 cumprod's loops."""
    loops = torch.__version__ < "2.13" and node.name() == "CumprodBackward0"
    if loops and node._raw_saved_self.unpack_hook is None:
        node._raw_saved_self.register_hooks(
            lambda x: x, lambda x: x.new_empty(()) if is_skipped() else x
        )


def selects(node: Any) -> str:
    """Return the operation by which a node picks as many entries as values say, or ""."""
    return "masked_select" if node.name() == _SELECTING else ""


def gradients_of(node: Any, gradients: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    """Return a node's gradients as without a mode; ``gradients`` are its gradients under one."""
    if selects(node):  # what is picked out is not known
        return (None if gradients[0] is None else grad.clone(), *gradients[1:])
    if node.name() == _STRIDED:
        return (_strided(node, gradients[0], grad), *gradients[1:])
    if node._raw_saved_result.unpack_hook is not None:
        x, y = gradients[0], grad  # a checkpoint hands them out once; these are of the same shapes
    else:
        x, y = node._saved_self, node._saved_result
    return (_GRADIENTS[node.name()](node, x, y, grad), *gradients[1:])
