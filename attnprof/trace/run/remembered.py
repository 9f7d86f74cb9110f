"""Reuse results in runs without values: a result's layout depends on the operands' layouts alone.

So an operation on operands of known layouts need not be asked of torch again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode

from attnprof.ops.layout import contiguous

#: Where torch keeps the mode of fake tensors, below all others.
FAKE = torch._C._TorchDispatchModeKey.FAKE
#: Makes a result again: a method, and its arguments after the tensors that the operation is given.
Making = tuple[Callable[..., Any], tuple[Any, ...]]
#: What runs at sizes that are numbers leave for later ones, and how many operations at most.
_KNOWN: dict[Any, tuple[Any, list[Making]]] = {}
_MOST_KNOWN = 50_000
#: Makes numbers that code may read, as layers' rates, and how many of these have values at most.
_LINE, _SHORT = torch.ops.aten.linspace.default, 256
#: Types of numbers and settings, of which an operation has several.
_SETTINGS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
#: Views that are given all sizes of their result.
_EXPANDED = torch.ops.aten.expand.default
_RESHAPED = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, _EXPANDED}
#: Tags of operations whose results depend on more than layouts.
_OTHERS = {"data_dependent_output", "dynamic_output_shape", "inplace_view"}
#: Operations whose results, or errors, depend on where in its storage an operand begins.
_BY_OFFSET = {"as_strided", "set", "view_as_complex", "view_as_complex_copy"}


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which nothing is compiled."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch need not guard each call against its compiler."""
        return False


class Remembering(EagerMode):
    """A mode in which an operation on operands of known layouts gives results like earlier ones.

    ``fake`` is the mode below this one that tensors belong to; None for meta tensors. Layers,
    turns of a loop and runs that are alike take a fraction of the time of the first.
    """

    def __init__(self, fake: FakeTensorMode | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake
        if len(_KNOWN) > _MOST_KNOWN:
            _KNOWN.clear()
        self._made = {} if fake and fake.shape_env is not None else _KNOWN

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:  # no numbers are drawn
            func, kwargs = _undrawn(func), {k: x for k, x in kwargs.items() if k != "generator"}
        tensors: list[Any] = []
        key: Any = None
        if (
            _is_made_again(func)
            and func is not _LINE
            and torch._C._get_dispatch_mode(FAKE) is self._fake
        ):
            with suppress(TypeError):
                key = func, self._layouts(args, tensors), self._layouts(kwargs, tensors)
                key += self._fake is None, torch.get_default_dtype()
                key += tuple([_offset(x, func) for x in tensors])
                hash(key)
        if key and key not in self._made and func in _RESHAPED and not kwargs:
            self._note_view(key, func, *args)
        if key in self._made:
            kind, makings = self._made[key]
            outputs = [make(self, tensors, *arguments) for make, arguments in makings]
            return kind(outputs) if kind else outputs[0]
        out = func(*args, **kwargs)
        if self._fake and is_short_line(func, args):
            with unset_fake_temporarily():  # whose numbers code reads, as of layers' rates
                out.constant = func(*args, **{**kwargs, "device": "cpu"})
            return out
        if key and key[1:3] != (self._layouts(args, []), self._layouts(kwargs, [])):
            return out  # it resized an operand
        results = list(out) if isinstance(out, list | tuple) else [out]
        if key is not None and all(isinstance(x, torch.Tensor) for x in results):
            makings = [making for x in results if (making := self._making(x, tensors))]
            if len(makings) == len(results) and _share_no_storage(results, tensors):
                self._made[key] = None if results[0] is out else type(out), makings
        return out

    def _note_view(self, key: Any, func: Any, tensor: Any, sizes: Any) -> None:
        """Note how a view is made if that is plain; torch takes long to find it of symbols."""
        strides = _viewed_strides(tensor, sizes, stretched=func is _EXPANDED)
        if strides is not None:
            layout = 0, tuple(sizes), strides, 0, self._device(tensor)
            self._made[key] = None, [(Remembering._make_view, layout)]

    def _layouts(self, value: Any, tensors: list[Any]) -> Any:
        """Return all that a result's layout depends on; raise TypeError if that is unknown."""
        if type(value) in _SETTINGS:
            return type(value), value
        if isinstance(value, torch.Tensor):
            if not self._plain(value):
                raise TypeError
            tensors.append(value)
            sizes = (*value.shape, *value.stride())
            layout = tuple(map(_comparable, sizes)), value.dtype, value.is_conj()
            return *layout, self._device(value)
        if isinstance(value, (list, tuple)):
            return tuple([self._layouts(x, tensors) for x in value])
        if isinstance(value, dict):
            return tuple([(name, self._layouts(x, tensors)) for name, x in value.items()])
        return type(value), _comparable(value)

    def _plain(self, tensor: Any) -> bool:
        """Return whether a tensor is fake (or meta) as all of this mode are, and has no values."""
        if tensor.layout is not torch.strided or tensor.is_neg():
            return False
        if self._fake is None:
            return bool(tensor.is_meta)
        return isinstance(tensor, FakeTensor) and tensor.constant is None

    def _device(self, tensor: Any) -> Any:
        """Return the device that a fake tensor stands for; None for meta tensors."""
        return tensor.fake_device if self._fake else None

    def _making(self, result: Any, tensors: list[Any]) -> Making | None:
        """Return how a result of this layout is made again; None if that is unknown."""
        for place, tensor in enumerate(tensors):
            if tensor is result:
                return Remembering._operand, (place,)
        if not self._plain(result) or result.is_conj():
            return None
        storage = result.untyped_storage()
        layout = result.shape, result.stride(), result.storage_offset()
        device = self._device(result)
        for place, tensor in enumerate(tensors):
            if tensor.untyped_storage()._cdata == storage._cdata:
                if tensor.dtype != result.dtype or tensor.is_conj():  # no view of it keeps that
                    return None
                further = result.storage_offset() - tensor.storage_offset()  # wherever that begins
                return Remembering._make_view, (place, *layout[:2], further, device)
        entries = storage.nbytes() // result.element_size()
        return Remembering._new, (entries, layout, result.dtype, device)

    def _operand(self, tensors: list[Any], place: int) -> Any:
        return tensors[place]

    def _make_view(
        self, tensors: list[Any], place: int, sizes: Any, strides: Any, further: Any, device: Any
    ) -> Any:
        """Return a view of one of the tensors."""
        offset = tensors[place].storage_offset() + further
        with self._below():
            view = torch.as_strided(tensors[place], sizes, strides, offset)
        return self._faked(view, device)

    def _new(self, _tensors: list[Any], entries: Any, layout: Any, dtype: Any, device: Any) -> Any:
        """Return a new tensor whose storage holds so many entries."""
        with self._below():
            tensor = torch.empty(entries, dtype=dtype, device="meta").as_strided(*layout)
        return self._faked(tensor, device)

    def _faked(self, meta: Any, device: torch.device) -> Any:
        """Return the fake tensor for a meta tensor, which itself is the result in a meta world."""
        return meta if self._fake is None else FakeTensor(self._fake, meta, device)

    @contextmanager
    def _below(self) -> Iterator[None]:
        """Make operations inside give the meta tensors below fake ones, unseen by modes."""
        if self._fake is None:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                yield
            return
        with in_kernel_invocation_manager(self._fake), torch._C._DisablePythonDispatcher():
            yield


def is_short_line(func: Any, args: Any) -> bool:
    """Return whether an operation makes few numbers from numbers alone: their values are known."""
    return func is _LINE and all(type(x) in (int, float) for x in args) and args[2] <= _SHORT


def _viewed_strides(tensor: Any, sizes: Any, *, stretched: bool) -> Any:
    """Return the strides of a view of these sizes, all above one; None where they are not plain.

    They are if the tensor has these sizes already, or as many entries, which lie row by row.
    """
    old, new = (list(map(_comparable, shape)) for shape in (tensor.shape, sizes))
    if tensor.is_conj() or any(size in (-1, 0, 1) for size in (*old, *new)):
        return None
    if old == new:
        return tensor.stride()
    rows = list(map(_comparable, contiguous(tensor.shape)))
    if stretched or rows != list(map(_comparable, tensor.stride())) or prod(old) != prod(new):
        return None
    return contiguous(sizes)


def _comparable(size: Any) -> Any:
    """Return a size's expression, which compares without a guard; any other value as it is."""
    node = getattr(size, "node", None)
    return size if node is None else node.expr


def _offset(tensor: Any, func: Any) -> Any:
    """Return where in its storage an operand begins, if that matters to an operation; else None."""
    return _comparable(tensor.storage_offset()) if _is_by_offset(func) else None


def _share_no_storage(results: list[Any], tensors: list[Any]) -> bool:
    """Return whether new results share no storage with each other."""
    old = {x.untyped_storage()._cdata for x in tensors}
    new = [key for x in results if (key := x.untyped_storage()._cdata) not in old]
    return len(new) == len(set(new))


@cache
def _undrawn(func: Any) -> Any:
    """Return the operation without a generator; with one, torch takes no symbolic sizes."""
    packet, kind = func.overloadpacket, func._overloadname.replace("generator", "").strip("_")
    return getattr(packet, kind or "default", func)


@cache
def _is_by_offset(func: Any) -> bool:
    """Return whether it matters to an operation where in its storage an operand begins."""
    packet = func.overloadpacket.__name__
    return packet.rstrip("_") in _BY_OFFSET or func is torch.ops.aten.view.dtype


@cache
def _is_made_again(func: Any) -> bool:
    """Return whether the layouts of its operands alone decide an operation's results."""
    is_aten = isinstance(func, torch._ops.OpOverload) and func.namespace == "aten"
    return is_aten and _OTHERS.isdisjoint(tag.name for tag in func.tags)
