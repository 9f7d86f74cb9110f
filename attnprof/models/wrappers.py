"""Modules that wrap a model or replace a part of it, so that ``derive`` can count them.

:class:`CacheCopy` copies a model's cache, :class:`OptimizerStep` is a step of an optimizer. Both
are derived like a model. :class:`SwappedKernel` and :class:`SwappedAttention` put a mechanism of
ours into a layer of transformers, and decode by the mechanism's own step: the layer's entry of the
cache counts tokens, which the model's positions and masks need, and holds the mechanism's state.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from attnprof.blocks.cache import positioned
from attnprof.blocks.core import TextCore
from attnprof.trace.rules import result_of, tensors_in
from attnprof.trace.run.experts import Routing
from attnprof.trace.run.limits import Limit
from attnprof.trace.run.remembered import EagerMode
from attnprof.workload import Workload


class Unrecorded(EagerMode):
    """A dispatch mode in which code on tensors without values runs as in a recorded run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._routing, self._limit = Routing(), Limit()

    @property
    def operations(self) -> int:
        """The number of operations so far."""
        return self._limit.done

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._limit()
        kwargs = kwargs or {}
        out = self._routing.answered(func, args, kwargs)
        if out is None:
            out = result_of(func, args, kwargs)
        self._routing.observe(func, args, kwargs, out)
        return out


class StoragesRead(EagerMode):
    """A dispatch mode that keeps the ``storages`` of all operations' tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = set[int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tensors_in((args, kwargs)):
            self.storages.add(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no method says it
        return func(*args, **kwargs or {})


class CacheLayer(nn.Module):
    """One layer's tensors of a cache, copied when it is called."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        self.tensors = tensors

    def forward(self) -> list[Any]:
        """Return a copy of each tensor."""
        return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in self.tensors]


class CacheCopy(nn.Module):
    """A cache, copied layer by layer: all copies are held at once, each tensor once."""

    def __init__(self, layers: list[list[Any]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CacheLayer(tensors) for tensors in layers)

    def forward(self) -> list[list[Any]]:
        """Return the copies of every layer."""
        return [layer() for layer in self.layers]


class OptimizerStep(nn.Module):
    """A step of an optimizer, after a first one that made its state.

    Weights named in ``ungraded`` have no gradient, and so no state.
    """

    def __init__(self, model: nn.Module, kind: Any, ungraded: frozenset[str]) -> None:
        super().__init__()
        self.model = model
        self.optimizer = kind(model.parameters())
        for name, weights in model.named_parameters():
            if name not in ungraded:
                weights.grad = torch.empty_like(weights)
        self.optimizer.step()

    def forward(self) -> None:
        """Run one step."""
        self.optimizer.step()


class StateLayer:
    """A layer of transformers' cache that keeps a mechanism's state instead of keys and values."""

    _layer_type = None  # transformers registers classes that have one
    state: Any = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Count the tokens of keys (b, g, n, d), and return keys and values as they are."""
        self.cumulative_length = self.get_seq_length() + keys.shape[-2]
        return keys, values

    def get_seq_length(self) -> Any:
        """Return the tokens so far."""
        return getattr(self, "cumulative_length", 0)


@cache
def _with_state(kind: Any) -> Any:
    """Return a class of cache layers like ``kind`` that also keeps a mechanism's state."""
    return type(f"State{kind.__name__}", (StateLayer, kind), {})


def cache_in_call(values: Iterable[Any]) -> Any:
    """Return the cache that self-attention is called with; None where there is none."""
    from transformers.cache_utils import Cache, EncoderDecoderCache

    cache: Any = next((value for value in values if isinstance(value, Cache)), None)
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


class Swapped(nn.Module):
    """A mechanism in a model's layer: its core, or its whole layer.

    ``number`` is the layer's number in the model's cache, or None; ``decodes``: it keeps a state.
    """

    def __init__(self, number: int | None, decodes: bool) -> None:
        super().__init__()
        self.number, self.decodes = number, decodes

    @property
    def mechanism(self) -> Any:
        """The module inside, which takes a prompt and steps."""
        return next(self.children())

    def kept_entries(self, tokens: int) -> tuple[int, int]:
        """Return the entries kept of a sequence, and how many of them are in float32."""
        spec, sizes = self.mechanism.spec, self.mechanism.sizes
        after = Workload(
            tokens, sizes.num_heads, sizes.head_dim, num_kv_heads=sizes.num_kv_heads,
            value_head_dim=sizes.value_head_dim, width=sizes.width, phase="decode",
        )  # fmt: skip
        around = 0 if isinstance(self.mechanism, TextCore) else spec.layer_entries(after)
        return int(spec.state_entries(after) + around), int(spec.wide_entries(after))

    def _place(self, values: Iterable[Any]) -> Any:
        """Return the layer's place in the cache that attention is called with; None without one."""
        cache, number = cache_in_call(values), self.number
        if cache is None or number is None:
            return None
        while len(cache.layers) <= number:
            cache.layers.append(cache.layer_class_to_replicate())
        layer = cache.layers[number]
        if not isinstance(layer, StateLayer):
            kind: Any = type(layer)
            kind = _with_state(kind)
            layer, replaced = kind.__new__(kind), layer
            vars(layer).update(vars(replaced))
            vars(layer).pop("_sliding_window_tensor", None)  # eight bytes that nothing reads
            cache.layers[number] = layer
        return layer

    def _run(self, place: Any, rows: tuple[Tensor, ...], causal: bool) -> Tensor:
        """Run the mechanism on ``rows``, whose tokens are the last axis but one.

        A prompt leaves a state in its place of the cache; tokens after it take steps.
        """
        if place is None:
            return self._whole(rows, causal)
        if place.state is not None:
            out, place.state = self._steps(rows, place.state)
            return out
        mode = _get_current_dispatch_mode()
        if isinstance(mode, Unrecorded):  # only the state after a prompt is needed, not its result
            out = rows[-1].new_zeros(*rows[0].shape[:-1], rows[-1].shape[-1])
        else:
            out = self._whole(rows, causal)
        if not self.decodes:
            return out
        tokens, state = rows[0].shape[-2], self._fresh_state(rows)
        if mode is None and not torch.is_grad_enabled():
            _, place.state = self._steps(rows, state)
        else:  # recorded: the pass over a prompt returns the state, without single steps
            one = tuple(x.narrow(-2, 0, 1) for x in rows)
            place.state = positioned(self.mechanism, state, tokens, lambda: one)
        return out

    def _whole(self, rows: tuple[Tensor, ...], causal: bool) -> Tensor:
        out: Tensor = self.mechanism(*rows, causal=causal)
        return out

    def _fresh_state(self, rows: tuple[Tensor, ...]) -> Any:
        """Return the state before the first of these tokens, with room for them and the next."""
        core = getattr(self.mechanism, "core", self.mechanism)
        batch_size, tokens = rows[0].shape[0], rows[0].shape[-2]
        if isinstance(core, TextCore):
            like = rows[-1].new_empty(0)  # not the rows: a state may keep it
            return core.init_state(batch_size, like, tokens + 1, layer=core is not self.mechanism)
        return core.init_state(batch_size)

    def _steps(self, rows: tuple[Tensor, ...], state: Any) -> tuple[Tensor, Any]:
        """Return results of tokens one by one, and the state after them."""
        results = list[Tensor]()
        for token in range(rows[0].shape[-2]):
            result, state = self.mechanism.step(*(x.narrow(-2, token, 1) for x in rows), state)
            results.append(result)
        return results[0] if len(results) == 1 else torch.cat(results, -2), state


class SwappedKernel(Swapped):
    """A mechanism's core on a model's own queries, keys and values."""

    _cache: Any = None

    def __init__(self, core: TextCore, number: int | None, decodes: bool) -> None:
        super().__init__(number, decodes)
        self.core = core

    def look_for_cache(self, _: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember the layer's place in the cache that attention is called with."""
        self._cache = self._place((*args, *kwargs.values()))

    def forward(
        self, owner: Any, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Any]
    ) -> Tensor:
        """Return heads (b, h, n, d), (b, g, m, d), (b, g, m, dv) → (b, n, h, dv)."""
        place, self._cache = self._cache, None
        causal = is_causal(owner, more) and bool(k.shape[2] == q.shape[2])
        usual, scaling = q.shape[-1] ** -0.5, more.get("scaling")
        if scaling is not None and not math.isclose(scaling, usual):
            q = q * (scaling / usual)  # a mechanism scales scores itself
        missing = self.core.sizes.num_kv_heads // k.shape[1]
        if missing > 1:
            k, v = (x.repeat_interleave(missing, 1) for x in (k, v))
        return self._run(place, (q, k, v), causal).transpose(1, 2).contiguous()


class SwappedAttention(Swapped):
    """A mechanism's layer in place of a module that returns rows, or a tuple like ``result``."""

    def __init__(
        self, layer: nn.Module, number: int | None, decodes: bool, causal: bool, result: Any
    ) -> None:
        super().__init__(number, decodes)
        self.layer, self.causal, self.result = layer, causal, result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer on the rows (b, n, d_model) of a call; return a result of the same form."""
        values = (*args, *kwargs.values())
        rows, place = rows_in(values), self._place(values)
        if place is not None:
            place.update(rows, rows)
        y = self._run(place, (rows,), self.causal)
        return y if self.result is None else (y, *self.result[1:])


def is_causal(module: Any, more: Mapping[str, Any]) -> bool:
    """Return whether attention is causal, as transformers' own kernels read it."""
    flag = more.get("is_causal")
    return bool(getattr(module, "is_causal", True) if flag is None else flag)


def rows_in(values: Iterable[Any]) -> Tensor:
    """Return the rows (b, n, d_model) among a module's arguments: the first tensor."""
    rows: Tensor = next(value for value in values if isinstance(value, Tensor))
    return rows
