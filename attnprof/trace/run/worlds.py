"""Modules made of fake tensors: nothing is allocated, no weight is drawn.

Initialisation would only cost time, and under symbolic sizes it pins symbols: it is left out.
"""

import copy
import logging
import numbers
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from attnprof.trace.rules.expansions import FAST_PATHS
from attnprof.trace.rules.recurrent import CELLS, LAYERS
from attnprof.trace.run import quotients
from attnprof.trace.run.disguise import disguised, uncompiled
from attnprof.trace.run.remembered import FAKE, Remembering, is_short_line
from attnprof.trace.run.symbols import conversions_kept


@contextmanager
def fake_world(environment: Any = None, dtype: str = "float32") -> Iterator[FakeTensorMode]:
    """Tensors made inside are fake; with a shape environment, of symbolic sizes."""
    with ExitStack() as stack:
        stack.enter_context(_world(dtype))
        if environment is not None:
            stack.enter_context(enable_python_dispatcher())
        mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
        stack.enter_context(mode)
        stack.enter_context(Remembering(mode))
        stack.enter_context(disguised())
        if environment is not None:  # keys of symbolic shapes cost more than the work they save
            mode.cache_enabled = False
            stack.enter_context(_as_without_symbols())
            stack.enter_context(conversions_kept(integers=environment.conversions.integers))
        yield mode


@contextmanager
def meta_world(dtype: str = "float32") -> Iterator[None]:
    """Tensors made inside have no values and no device; one that would have them is an error."""
    with _world(dtype), _OnMeta("meta"), _OnlyMeta(), Remembering():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def real_world(dtype: str = "float32") -> Iterator[None]:
    """Tensors made inside are real, weights as their module draws them, the same each time.

    A module that exists already is copied.
    """
    with ExitStack() as stack, _world(dtype, drawn=True), torch.random.fork_rng(devices=[]):
        stack.callback(_REAL.reset, _REAL.set(True))
        torch.default_generator.manual_seed(0)
        yield


_COMPOSITE: Any = torch._C.DispatchKey.CompositeImplicitAutograd
_META: Any = torch._C.DispatchKey.Meta
#: Whether modules that exist are run on their own weights.
_REAL: ContextVar[bool] = ContextVar("real", default=False)


@contextmanager
def _world(dtype: str, *, drawn: bool = False) -> Iterator[None]:
    """What every run has: no warnings, nothing compiled, a type; weights only where ``drawn``."""
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(getattr(torch, dtype))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(uncompiled())
        if not drawn:
            for place in ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes"):
                log = logging.getLogger(f"torch.{place}")  # of what fails, which callers tell
                stack.enter_context(patch.object(log, "disabled", new=True))
            for owner, name in _initialisers():
                stack.enter_context(patch.object(owner, name, lambda tensor, *_, **__: tensor))
            flexible = sys.modules.get("torch.nn.attention.flex_attention")
            if flexible is not None:  # it would compile, which torch refuses under a dispatch mode
                plain = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
                stack.enter_context(patch.object(flexible, plain, new=True))
        warnings.simplefilter("ignore")
        yield


class _OnMeta(DeviceContext):
    """Makes meta tensors; of Python's numbers by the operation that makes others."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return torch.ops.aten.lift_fresh(made) if func is torch.tensor else made


class _OnlyMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that would make real tensors, before they take memory."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        real = device is not None and torch.device(device).type != "meta"
        if real and not is_short_line(func, args):
            raise RuntimeError(f"{func} on {device}: meta tensors only")
        return func(*args, **kwargs)


def constructed(build: Callable[[], Any], sizes: Iterable[Any]) -> Any:
    """What ``build`` makes: of fake tensors inside a fake world.

    A constructor that cannot work on those runs for real where sizes are numbers.
    """
    mode = current_mode()
    if mode is None or any(isinstance(size, torch.SymInt) for size in sizes):
        return build()
    try:
        return build()
    except Exception:  # noqa: BLE001 - whatever a constructor of somebody's raises
        with unset_fake_temporarily():
            return faked(build(), mode)


outside_fake = unset_fake_temporarily


def current_mode() -> FakeTensorMode | None:
    """The fake world that this runs in, if any."""
    mode = torch._C._get_dispatch_mode(FAKE)
    return mode if isinstance(mode, FakeTensorMode) else None


def faked(module: Any, mode: FakeTensorMode | None) -> Any:
    """A copy of a module with a fake tensor for each of its own; a plain copy for real runs.

    Sizes of its tensors are numbers; shared ones stay shared. On meta tensors it is the module.
    """
    if mode is None or not isinstance(module, torch.nn.Module):
        return copy.deepcopy(module) if _REAL.get() else module
    with unset_fake_temporarily():
        fakes = {id(x): mode.from_tensor(x, static_shapes=True) for x in _held_by(module)}
        return copy.deepcopy(module, fakes)


def emptied(module: torch.nn.Module) -> Any:
    """A copy of a module without values, on the device and in the world that this runs in."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(like, tensor.requires_grad)
        return like

    return copy.deepcopy(module, {id(tensor): empty(tensor) for tensor in _held_by(module)})


def _held_by(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers, and tensors that are neither."""
    held = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        held += [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return held


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


def _as_before(gradient: Any, _size: Any, before: Any, *_how: Any) -> Any:
    """The gradient of resized images; torch gives it no shape of symbols."""
    return gradient.new_empty(before)


@contextmanager
def _as_without_symbols() -> Iterator[None]:
    """Under symbolic sizes torch takes the ways it takes under numbers.

    Dropout, images of another size, windows, layers that normalise or go step by step and the fast
    paths of attention would take others, or fix sizes.
    """
    plain: list[Any] = [torch.ops.aten.dropout.default]
    composed = {torch.ops.aten.matmul.default: _batches_of_products, **CELLS}
    for name in _RESIZED:
        operation = getattr(torch.ops.aten, name)
        plain.append(operation.default)
        composed[operation.vec] = partial(_resized, operation)
    shaped = [getattr(torch.ops.aten, f"{name}_backward").default for name in _RESIZED]
    whole = SimpleNamespace(Integral=(numbers.Integral, torch.SymInt))
    with (
        ExitStack() as stack,
        patch.object(torch.nn.modules.normalization, "numbers", whole),
        patch.multiple(torch, **FAST_PATHS),
        patch.object(torch._C, "_select_conv_backend", _backend),
        patch.object(torch.Tensor, "unfold", _windows),
        patch.multiple(decompositions, **LAYERS),
    ):
        for patched in quotients.patches():
            stack.enter_context(patched)
        for operation in plain:
            stack.enter_context(patch.dict(operation.py_kernels, clear=True))
            stack.enter_context(patch.dict(operation._dispatch_cache, clear=True))
        kernels = [(one, _COMPOSITE, kernel) for one, kernel in composed.items()]
        kernels += [(one, _META, _as_before) for one in shaped if _META not in one.py_kernels]
        for operation, key, kernel in kernels:
            stack.enter_context(patch.dict(operation.py_kernels, {key: kernel}))
            stack.enter_context(patch.dict(operation._dispatch_cache, clear=True))
        yield


@cache
def _initialisers() -> list[tuple[Any, str]]:
    """Functions that draw weights, there and where torch's layers imported or call them."""
    layers = [m for name, m in sys.modules.items() if name.startswith("torch.nn.modules.")]
    drawing = [
        (place, name)
        for place in (torch.nn.init, *layers)
        for name, value in vars(place).items()
        if getattr(value, "__module__", "") == "torch.nn.init"
        if name.endswith("_") and (name[0] != "_" or name.startswith("_no_grad_"))
    ]
    kinds = [kind for kind in vars(torch.nn).values() if isinstance(kind, type)]
    reset = "reset_parameters"
    return drawing + [(kind, reset) for kind in kinds if reset in vars(kind)]
