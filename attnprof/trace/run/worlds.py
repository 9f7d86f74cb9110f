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
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from attnprof.trace.rules import tensors_in
from attnprof.trace.rules.expansions import FAST_PATHS
from attnprof.trace.run.disguise import disguised, uncompiled
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
        stack.enter_context(disguised())
        if environment is not None:  # keys of symbolic shapes cost more than the work they save
            mode.cache_enabled = False
            stack.enter_context(_as_without_symbols())
            stack.enter_context(conversions_kept(integers=environment.conversions.integers))
        yield mode


@contextmanager
def meta_world(dtype: str = "float32") -> Iterator[None]:
    """Tensors made inside have no values and no device; one that would have them is an error."""
    with _world(dtype), torch.device("meta"), _OnlyMeta():
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


class _OnlyMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that would make real tensors, before they take memory.

    What an operation makes of operands of one layout is remembered: torch works it out in Python.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[Any, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "meta":
            raise RuntimeError(f"{func} on {device}: meta tensors only")
        if kwargs or not _makes_one(func):
            return func(*args, **kwargs)
        asked = func, _layouts(args)
        if asked in self._made:
            return _empty(*self._made[asked])
        out = func(*args)
        layout, storage = (out.shape, out.stride(), out.dtype), out.untyped_storage()
        shared = any(x.untyped_storage()._cdata == storage._cdata for x in tensors_in(args))
        if not shared and storage.nbytes() == _empty(*layout).untyped_storage().nbytes():
            self._made[asked] = layout
        return out


def _empty(shape: Any, stride: Any, dtype: Any) -> Any:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


@cache
def _makes_one(func: Any) -> bool:
    """Whether an operation says that its result is one tensor, none that it was given."""
    schema = getattr(func, "_schema", None)
    if schema is None or any(argument.alias_info for argument in schema.arguments):
        return False
    return [str(result.type) for result in schema.returns] == ["Tensor"]


def _layouts(value: Any) -> Any:
    """What tells operands apart as far as a result's layout can."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.is_conj()
    if isinstance(value, list | tuple):
        return tuple(map(_layouts, value))
    return type(value), value


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


def current_mode() -> FakeTensorMode | None:
    """The fake world that this runs in, if any."""
    mode = _get_current_dispatch_mode()
    return mode if isinstance(mode, FakeTensorMode) else None


def faked(module: Any, mode: FakeTensorMode | None) -> Any:
    """A copy of a module with a fake tensor for each of its own; a plain copy for real runs.

    Sizes of its tensors are numbers; shared ones stay shared. On meta tensors it is the module.
    """
    if mode is None or not isinstance(module, torch.nn.Module):
        return copy.deepcopy(module) if _REAL.get() else module
    held = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        held += [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
    with unset_fake_temporarily():
        fakes = {id(tensor): mode.from_tensor(tensor, static_shapes=True) for tensor in held}
        return copy.deepcopy(module, fakes)


@contextmanager
def _as_without_symbols() -> Iterator[None]:
    """Under symbolic sizes torch takes the ways it takes under numbers.

    Dropout, layers that normalise and the fast paths of attention would take others, or fix sizes.
    """
    dropout: Any = torch.ops.aten.dropout.default
    whole = SimpleNamespace(Integral=(numbers.Integral, torch.SymInt))
    with (
        patch.object(torch.nn.modules.normalization, "numbers", whole),
        patch.multiple(torch, **FAST_PATHS),
        patch.dict(dropout.py_kernels, clear=True),
        patch.dict(dropout._dispatch_cache, clear=True),
    ):
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
        if name.endswith("_") and not name.startswith("_")
    ]
    kinds = [kind for kind in vars(torch.nn).values() if isinstance(kind, type)]
    reset = "reset_parameters"
    return drawing + [(kind, reset) for kind in kinds if reset in vars(kind)]
