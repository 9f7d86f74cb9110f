"""The three worlds that runs are made in: fake, meta and real tensors.

In the first two nothing is allocated. Weights are not initialised there: initialisation takes time
and pins symbolic sizes.
"""

import copy
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.attention.bias import CausalBias
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.profiler import itt
from torch.utils._device import DeviceContext

from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.run.disguise import disguised, drawing, uncompiled
from attnprof.trace.run.remembered import FAKE, EagerMode, Remembering, is_short_line
from attnprof.trace.run.symbols import conversions_kept
from attnprof.trace.run.torch_under_symbols import as_under_numbers
from attnprof.user_code import line_of


@contextmanager
def fake_world(environment: Any = None, dtype: str = "float32") -> Iterator[FakeTensorMode]:
    """Make tensors inside fake; with a shape environment, of symbolic sizes."""
    with ExitStack() as stack:
        stack.enter_context(_world(dtype))
        if environment is not None:
            stack.enter_context(enable_python_dispatcher())
        mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
        stack.enter_context(mode)
        stack.enter_context(Remembering(mode))
        stack.enter_context(disguised())
        for kind in (UninitializedParameter, UninitializedBuffer):  # no fake tensors
            make = unset_fake_temporarily()(kind.__new__)
            stack.enter_context(patch.object(kind, "__new__", make))
        if environment is not None:  # keys of symbolic shapes cost more than the work they save
            mode.cache_enabled = False
            stack.enter_context(as_under_numbers())
            stack.enter_context(patch.object(scans, "generic_associative_scan", _scanned))
            stack.enter_context(conversions_kept(integers=environment.conversions.integers))
        yield mode


def _causal_bias(kind: type, *sizes: Any) -> Any:
    """Return a bias that no mode has made; it keeps the memory that one takes without a mode."""
    with unset_fake_temporarily():
        bias: Any = torch.Tensor._make_subclass(kind, torch.empty(0))
    bias.kept = torch.empty(sizes)
    return bias


@contextmanager
def meta_world(dtype: str = "float32") -> Iterator[None]:
    """Make tensors inside meta tensors; one that would have values is an error."""
    with _world(dtype), _OnMeta("meta"), _OnlyMeta(), Remembering():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def real_world(dtype: str = "float32") -> Iterator[None]:
    """Make tensors inside real, with weights as their module draws them, the same each time.

    A module that exists already is copied.
    """
    with ExitStack() as stack, _world(dtype, drawn=True), torch.random.fork_rng(devices=[]):
        stack.callback(_REAL.reset, _REAL.set(True))
        torch.default_generator.manual_seed(0)
        yield


#: Whether modules that exist are run on their own weights.
_REAL: ContextVar[bool] = ContextVar("real", default=False)


class _Silent:
    """Takes any call of any method, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


_SILENT = _Silent()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep transformers from warning of kernels that are not installed: nothing is computed.

    A level takes long to set, since all loggers forget theirs: of many runs, all in one such
    context set none.
    """
    log = logging.getLogger("transformers")
    level = log.level
    if "transformers" not in sys.modules or level == logging.ERROR:
        yield  # it sets its level itself, as it is imported
        return
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _world(dtype: str, *, drawn: bool = False) -> Iterator[None]:
    """Set up what all worlds share: dtype, no warnings, nothing compiled, weights if ``drawn``."""
    with ExitStack() as stack:
        stack.enter_context(drawing(drawn=drawn))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(getattr(torch, dtype))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(uncompiled())
        stack.enter_context(quiet_hub())
        stack.enter_context(patch.object(CausalBias, "__new__", _causal_bias, create=True))
        if not drawn:
            symbols = ("fx.experimental.symbolic_shapes", "fx.experimental.sym_node")
            for place in ("_subclasses.fake_tensor", *symbols):
                log = logging.getLogger(f"torch.{place}")  # of what fails, which callers tell
                stack.enter_context(patch.object(log, "disabled", new=True))
            flexible = sys.modules.get("torch.nn.attention.flex_attention")
            if flexible is not None:  # it would compile, which torch refuses under a dispatch mode
                plain = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
                stack.enter_context(patch.object(flexible, plain, new=True))
        hub: Any = sys.modules.get("transformers.modeling_utils")
        # it reads tokens, only to warn of padding
        left_out = ["warn_if_padding_and_no_attention_mask", *["initialize_weights"] * (not drawn)]
        for method in left_out if hub is not None else ():
            nothing: Any = patch.object(
                hub.PreTrainedModel, method, lambda *_, **__: None, create=True
            )
            stack.enter_context(nothing)
        warnings.simplefilter("ignore")
        # ranges for a profiler that this build of torch has not
        stack.enter_context(patch.object(torch.cuda.nvtx, "_nvtx", _SILENT))
        stack.enter_context(patch.object(itt, "_itt", _SILENT))
        yield


scans = import_module("torch._higher_order_ops.associative_scan")
_scan = scans.generic_associative_scan


def _scanned(operator: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
    """Scan along a size that is a number: no formula over sizes counts the rounds."""
    if any(isinstance(leaf.shape[dim], torch.SymInt) for leaf in leaves):
        raise RuntimeError(
            "associative_scan, one of torch's higher-order operations, halves the length round by "
            "round: rounds and sizes go by its binary digits, and no formula counts them"
        )
    return _scan(operator, leaves, dim, additional_inputs)


class _OnMeta(DeviceContext):
    """Makes meta tensors; from Python's numbers by the operation that fake tensors use."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return torch.ops.aten.lift_fresh(result) if func is torch.tensor else result


class _OnlyMeta(EagerMode):  # type: ignore[no-untyped-call]
    """Refuses operations that would make real tensors, before they take memory."""

    supports_higher_order_operators = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        real = device is not None and torch.device(device).type != "meta"
        if real and not is_short_line(func, args):
            raise RuntimeError(f"{func} makes values on {device}, in a run without values")
        return func(*args, **kwargs)


def constructed(build: Callable[[], Any], sizes: Iterable[Any]) -> Any:
    """Return the module that ``build`` makes, of fake tensors inside a fake world.

    A constructor that fails on fake tensors runs on real ones if sizes are numbers.
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
    """Return the fake mode that is active, or None."""
    mode = torch._C._get_dispatch_mode(FAKE)
    return mode if isinstance(mode, FakeTensorMode) else None


def has_values() -> bool:
    """Return whether tensors that are made now have values."""
    return current_mode() is None and torch.get_default_device().type != "meta"


@contextmanager
def on_meta() -> Iterator[None]:
    """Make tensors inside meta tensors, in a fake world too."""
    with unset_fake_temporarily(), torch.device("meta"):
        yield


def faked(module: Any, mode: FakeTensorMode | None) -> Any:
    """Return a copy of a module with a fake tensor for each of its own; a plain copy for real runs.

    Sizes of its tensors are numbers; shared tensors stay shared. For runs on meta tensors it is the
    module itself, unless it has lazy layers, which a run settles.
    """
    if mode is None or not isinstance(module, torch.nn.Module):
        weights = isinstance(module, torch.nn.Module) and [*module.parameters(), *module.buffers()]
        lazy = weights and any(map(is_lazy, weights))
        return copy.deepcopy(module) if lazy or _REAL.get() else module
    with unset_fake_temporarily():
        fakes = {id(x): mode.from_tensor(x, static_shapes=True) for x in _tensors_of(module)}
        return copy.deepcopy(module, fakes)


#: The most bytes of weights without values that get memory.
_MOST_META = 2**32


def on_cpu(module: torch.nn.Module) -> Any:
    """Return a module whose tensors are on the CPU: a copy if they are not, zeros for meta ones.

    Raises :class:`RequestError` for meta ones that would take gigabytes.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        values = torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor.detach().cpu()
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(values, tensor.requires_grad)
        return values

    tensors = _tensors_of(module)
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return module
    if sum(tensor.nbytes for tensor in tensors if tensor.is_meta) > _MOST_META:
        name = type(module).__name__
        raise RequestError(
            f"weights of {name} on the meta device would take gigabytes: pass a function that "
            f"makes the module, like lambda: {name}(…), which takes none"
        )
    return copy.deepcopy(module, {id(tensor): moved(tensor) for tensor in tensors})


def emptied(module: torch.nn.Module, *kept: Any) -> Any:
    """Return a copy of a module without values, on the device and in the world that is active.

    With values that it ``kept``, as caches, it is a tuple of copies; storages shared by tensors in
    these stay shared.
    """
    storages = dict[Any, torch.Tensor]()

    def weight(tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(like, tensor.requires_grad)
        return like

    def copied(tensor: torch.Tensor, _: Any) -> torch.Tensor:
        storage, layout = tensor.untyped_storage(), (tensor.shape, tensor.stride())
        key, entries = (storage._cdata, tensor.dtype), storage.nbytes() // tensor.element_size()
        if key not in storages:
            storages[key] = torch.empty(entries, dtype=tensor.dtype)
        return storages[key].as_strided(*layout, tensor.storage_offset())

    weights = {id(tensor): weight(tensor) for tensor in _tensors_of(module)}
    with patch.object(torch.Tensor, "__deepcopy__", copied):
        return copy.deepcopy((module, *kept) if kept else module, weights)


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return parameters, buffers, and other tensors of a module, but for lazy ones."""
    tensors = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        tensors += [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return [tensor for tensor in tensors if not is_lazy(tensor)]


# -- lazy layers, which get their sizes from the first call ------------------------------
def settle(subject: Any, positional: Any, named: Any) -> None:
    """Call a module once if it has lazy weights: they have sizes then."""
    if not isinstance(subject, torch.nn.Module):
        return
    slots = {
        id(tensor): (table, name)
        for part in subject.modules()
        for table in (part._parameters, part._buffers)
        for name, tensor in table.items()
        if tensor is not None and is_lazy(tensor)
    }

    def materialize(lazy: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        table, name = slots[id(lazy)]
        tensor: Any = torch.empty(shape, device=device, dtype=dtype or lazy.dtype)
        if isinstance(lazy, UninitializedParameter):
            tensor = torch.nn.Parameter(tensor, lazy.requires_grad)
        table[name] = tensor

    if slots:
        lazy_tensor = UninitializedParameter.__mro__[1]  # which gives both kinds their method
        with patch.object(lazy_tensor, "materialize", materialize), torch.no_grad():
            subject(*positional, **named)


# -- tensors without one dense storage (nested, sparse, mkldnn), whose cost no rule counts --
#: By kind, the pattern of torch's error where a recorded run meets such a tensor, or makes one.
_KINDS = {
    "nested": r"NestedTensorImpl|aten\W+_nested_",
    "sparse": r"Sparse(Csr)?TensorImpl|aten\W+_?(to_)?sparse_",
    "mkldnn": r"OpaqueTensorImpl|aten\W+to_mkldnn",
}
_PADDED = (
    "; nn.TransformerEncoder makes them of a padding mask in evaluation: type --phase train, or "
    "build it with enable_nested_tensor=False"
)


class UnsupportedTensorError(CannotRunError):
    """Code makes tensors of a kind that is not counted."""


@contextmanager
def refusing_unsupported_tensors(*, symbolic: bool) -> Iterator[None]:
    """Raise :class:`UnsupportedTensorError` for torch's errors about unsupported tensors inside.

    Also for higher-order operations that fail in torch, unless sizes are ``symbolic``: numbers may
    do.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("attnprof."):
            raise  # not torch's, and some take their time to be written
        kinds = [kind for kind, pattern in _KINDS.items() if re.search(pattern, str(error))]
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any("/torch/nested/" in file for file in files):  # jagged ones
            kinds = ["nested"]
        if not kinds:
            if name := not symbolic and _failed_operation(error, files):
                raise UnsupportedTensorError(
                    f"{name}, one of torch's higher-order operations, cannot be followed here: "
                    "write a branch of it, or a loop, in its place"
                ) from error
            raise
        line = line_of(error)
        place = f" ({line})" if line else ""
        padded = any(file.endswith("/nn/modules/transformer.py") for file in files)
        advice = _PADDED if padded and kinds == ["nested"] else ""
        raise UnsupportedTensorError(
            f"{kinds[0]} tensors are not supported{place}{advice}"
        ) from error


def _failed_operation(error: Exception, files: list[str]) -> str:
    """Return the higher-order operation of torch's inside which torch itself fails, if any."""
    if not isinstance(error, AttributeError | TypeError | AssertionError):
        return ""
    inside = [Path(file).stem for file in files if "/torch/_higher_order_ops/" in file]
    names = [name for name in inside if name != "utils"]
    return names[0] if names and "/torch/" in files[-1] else ""
