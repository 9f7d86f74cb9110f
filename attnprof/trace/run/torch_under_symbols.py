"""Torch's functions under symbolic sizes, made to do what they do under numbers."""

import numbers
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from attnprof.trace.rules.expansions import FAST_PATHS
from attnprof.trace.rules.recurrent import CELLS, LAYERS
from attnprof.trace.run import quotients

_COMPOSITE: Any = torch._C.DispatchKey.CompositeImplicitAutograd
_META: Any = torch._C.DispatchKey.Meta


def _batches_of_products(*args: Any) -> Any:
    """Torch's decomposition, with a result that is no view: changed in place, those are copied."""

    def apart(x: Any, shape: Any) -> Any:
        return torch.ops.aten._unsafe_view(x, shape)

    with patch.object(torch.Tensor, "view", apart):
        return decompositions.matmul(*args)


#: Operations that resize images.
_RESIZED = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
_select_backend: Any = torch._C._select_conv_backend


def _backend(*tensors: Any, **how: Any) -> Any:
    """The library for a convolution: it asks for 16 samples also where that makes no difference."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(plain(list(value.shape)), [0] * value.dim())
        return tree_map_only(torch.SymInt, lambda size: size.node.hint, value)

    with unset_fake_temporarily():
        given = {name: plain(value) for name, value in how.items()}
        return _select_backend(*map(plain, tensors), **given)


def _resized(operation: Any, image: Any, size: Any, *how: Any) -> Any:
    """Images of another size, by one operation; ``how`` ends with factors of their sides."""
    scales, torchs = how[-1], vars(decompositions)
    size = torchs["upsample_compute_output_size"](image.shape, size, scales)
    each = [torchs["get_scale_value"](scales, side) for side in range(len(size))]
    return operation.default(image, size, *how[:-1], *each)


_unfold: Any = torch.Tensor.unfold


def _windows(tensor: torch.Tensor, dimension: int, size: Any, step: Any) -> Any:
    """Windows of a dimension, of symbolic sizes too where no gradient is asked of them."""
    graded = tensor.requires_grad and torch.is_grad_enabled()
    if graded or not any(isinstance(x, torch.SymInt) for x in (size, step)):
        return _unfold(tensor, dimension, size, step)
    sizes, strides = [*tensor.shape, size], list(tensor.stride())
    strides.append(strides[dimension])
    place = dimension % tensor.dim()
    sizes[place] = (sizes[place] - size) // step + 1
    strides[place] *= step
    return tensor.as_strided(sizes, strides)


_attention: Any = torch.nn.functional.scaled_dot_product_attention


def _attended(*args: Any, **kwargs: Any) -> Any:
    """Attention that is causal by a comparison of sizes (``is_causal=n > 1``), which is decided."""
    args, kwargs = tree_map_only(torch.SymBool, bool, (args, kwargs))
    return _attention(*args, **kwargs)


def _called(function: Any) -> Iterator[tuple[Any, str]]:
    """Where a function of torch's is called from: its own place, and whoever imported it."""
    own = {"torch", "sympy", "attnprof"}
    places = [x for name, x in sys.modules.copy().items() if name.partition(".")[0] not in own]
    for place in (torch.nn.functional, *places):
        names = vars(place).copy() if isinstance(place, ModuleType) else {}
        yield from ((place, name) for name, value in names.items() if value is function)


def _as_before(gradient: Any, _size: Any, before: Any, *_how: Any) -> Any:
    """The gradient of resized images; torch gives it no shape of symbols."""
    return gradient.new_empty(before)


@contextmanager
def as_under_numbers() -> Iterator[None]:
    """Under symbolic sizes torch takes the ways it takes under numbers.

    Dropout, images of another size, windows, layers that normalise or go step by step, attention
    and its fast paths would take others, or fix sizes.
    """
    plain: list[Any] = [torch.ops.aten.dropout.default]
    composed = {torch.ops.aten.matmul.default: _batches_of_products, **CELLS}
    for name in _RESIZED:
        operation = getattr(torch.ops.aten, name)
        plain.append(operation.default)
        composed[operation.vec] = partial(_resized, operation)
    shaped = [getattr(torch.ops.aten, f"{name}_backward").default for name in _RESIZED]
    whole = (numbers.Integral, torch.SymInt)  # as norms ask, torch's and others'
    with (
        ExitStack() as stack,
        patch.object(numbers, "Integral", whole),
        patch.multiple(torch, **FAST_PATHS),
        patch.object(torch._C, "_select_conv_backend", _backend),
        patch.object(torch.Tensor, "unfold", _windows),
        patch.multiple(decompositions, **LAYERS),
    ):
        for patched in quotients.patches():
            stack.enter_context(patched)
        for place, name in _called(_attention):
            stack.enter_context(patch.object(place, name, _attended))
        for operation in plain:
            stack.enter_context(patch.dict(operation.py_kernels, clear=True))
            stack.enter_context(patch.dict(operation._dispatch_cache, clear=True))
        kernels = [(one, _COMPOSITE, kernel) for one, kernel in composed.items()]
        kernels += [(one, _META, _as_before) for one in shaped if _META not in one.py_kernels]
        for operation, key, kernel in kernels:
            stack.enter_context(patch.dict(operation.py_kernels, {key: kernel}))
            stack.enter_context(patch.dict(operation._dispatch_cache, clear=True))
        yield
