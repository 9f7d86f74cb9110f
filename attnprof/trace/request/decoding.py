"""Give a user's module a decoding step: one token, with the cache that N - 1 earlier ones leave.

Entry point: :func:`with_step`.
"""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import isfunction, signature
from typing import Any

from attnprof.blocks.cache import CachedCall, DecodingStep, positioned
from attnprof.errors import RequestError
from attnprof.trace.request.configurations import names_around, source_of
from attnprof.trace.request.signatures import Parameters
from attnprof.trace.request.target import Expression, Input, Sizes, Target

#: Arguments of a forward pass for the keys and values of earlier tokens.
_CACHES = (
    "past_key_values", "past_key_value", "layer_past", "kv_cache", "cache", "past", "past_kv",
    "cache_params", "state", "incremental_state",
)  # fmt: skip
#: States of a layer beside keys and values: convolutions of queries, keys and values.
_STATES = 3


def with_step(target: Target, forward: Parameters, kind: Any) -> Target:
    """Return the target with a decoding step, if the module takes a cache or has a step.

    ``forward`` are the parameters of its pass, ``kind`` is its class. The cache is what a pass over
    the earlier tokens leaves: a cache of transformers if the class's code uses one, else the last
    result of the pass. A step of its own is ``step(x_t, state)``; ``init_state`` takes
    ``batch_size``, or inputs by name, such as an encoder's rows.
    """
    if "N" not in target.symbols:
        return target
    name = next((name for name in _CACHES if name in forward), "")
    if not name:
        return _with_own_step(target, kind)
    flags = {"use_cache": True} if "use_cache" in forward else {}
    return _with_cache(target, name, flags, kind)


def _with_cache(target: Target, name: str, flags: Mapping[str, Any], kind: Any) -> Target:
    """Return the target with a step on the last token; the argument ``name`` takes the cache.

    The cache of N - 1 tokens is extrapolated from those that passes over two and three tokens
    leave: a size that is one larger after three grows with N, so 2 and 3 become N - 1.
    """
    inputs = tuple(item for item in target.inputs if item.name != name)
    source = replace(target, inputs=inputs, keywords=target.keywords - {name})

    def cache_after(module: Any, sizes: Sizes) -> Any:
        import torch

        cache = _empty_cache(module, kind)
        before, others = source.call_inputs(sizes, _device(module))
        with torch.no_grad():
            result = module(*before, **{**others, **flags, name: cache})
        if cache is not None:
            return cache
        values = list(result.values()) if isinstance(result, Mapping) else result
        if isinstance(values, torch.Tensor):
            raise RequestError(
                f"{target.name} has no decoding step: with {name}=None it gives one tensor, and no "
                "cache for the next token; use --phase forward"
            )
        return values[-1]

    def make(sizes: Sizes) -> CachedCall:
        module = target.make(sizes).eval()
        caches = [cache_after(module, {**sizes, "N": n}) for n in (2, 3)]

        def number_at(pair: Sequence[Any]) -> Any:
            two, three = pair
            return two + sizes["N"] - 3 if three == two + 1 else two

        def tensor_at(pair: Sequence[Any]) -> Any:
            two, three = pair
            shape = map(number_at, zip(two.shape, three.shape, strict=True))
            return two if two.shape == three.shape else two.new_zeros([*shape])

        return CachedCall(module, {**flags, name: extrapolated(caches, number_at, tensor_at)})

    step = replace(source, inputs=tuple(map(_of_one_token, inputs)), make=make)
    return replace(target, step=step)


def _with_own_step(target: Target, kind: Any) -> Target:
    """Return the target with its own step, on a token of the first input that makes no state."""
    init_state = getattr(kind, "init_state", None)
    if not (isfunction(init_state) and callable(getattr(kind, "step", None))):
        return target
    state_arguments = {name for name in signature(init_state).parameters if name != "self"}
    step_inputs = [item for item in target.inputs if item.name not in state_arguments]
    state_inputs = tuple(item for item in target.inputs if item.name in state_arguments)
    names = frozenset(item.name for item in state_inputs)
    if not step_inputs or state_arguments - {"batch_size"} != names:
        return target
    length = "N" if "N" in (dim.text for dim in step_inputs[0].dims) else "M"
    step = replace(target, inputs=(_of_one_token(step_inputs[0], length),), keywords=frozenset())
    source = replace(target, inputs=state_inputs, keywords=names)

    def make(sizes: Sizes) -> DecodingStep:
        import torch

        def token() -> list[Any]:
            return step.call_inputs(sizes)[0]

        module = target.make(sizes).eval()
        arguments = dict(source.call_inputs(sizes, _device(module))[1])
        if "batch_size" in state_arguments:
            arguments["batch_size"] = token()[0].shape[0]
        with torch.no_grad():
            state = module.init_state(**arguments)
        return DecodingStep(module, positioned(module, state, sizes[length] - 1, token))

    return replace(target, step=replace(step, make=make))


def _of_one_token(item: Input, length: str = "N") -> Input:
    dims = (Expression("1") if dim.text == length else dim for dim in item.dims)
    return replace(item, dims=tuple(dims))


def extrapolated(
    values: Sequence[Any], number: Callable[[Sequence[int]], Any],
    tensor: Callable[[Sequence[Any]], Any], memo: dict[int, Any] | None = None,
) -> Any:  # fmt: skip
    """Return a cache at another length, made of the caches at a few lengths.

    ``number`` and ``tensor`` return its numbers and tensors from those at the same place in each of
    ``values``. An object that all caches share stays, others are copied, once each by ``memo``.
    """
    import torch

    memo = {} if memo is None else memo
    one = result = values[0]
    if id(one) in memo or all(other is one for other in values):
        result = memo.get(id(one), one)
    elif isinstance(one, torch.Tensor):
        result = tensor(values)
    elif isinstance(one, list | tuple):
        parts = [extrapolated(x, number, tensor, memo) for x in zip(*values, strict=True)]
        result = parts if isinstance(one, list) else tuple(parts)
    elif isinstance(one, dict):
        result = {
            name: extrapolated([value[name] for value in values], number, tensor, memo)
            for name in one
        }
    elif isinstance(one, int) and not isinstance(one, bool):
        result = number(values)
    elif hasattr(one, "__dict__") and not isinstance(one, type):
        result = memo[id(one)] = copy.copy(one)
        inside = [vars(value) for value in values]
        vars(result).update(extrapolated(inside, number, tensor, memo))
    return result


def _empty_cache(module: Any, kind: Any) -> Any:
    """Return an empty cache of transformers if the code of ``kind`` imports one, else None.

    It is of the subclass that the code defines, if it defines one. For code that reads states of
    convolutions it has room for these: of a model as its configuration says, of a layer _STATES.
    """
    scope = names_around(kind)
    if not {"Cache", "DynamicCache"} & set(scope):
        return None
    from transformers import cache_utils

    if "get_conv_state(" not in source_of(sys.modules.get(kind.__module__)):
        usual = cache_utils.DynamicCache
        classes = [kind for kind in scope.values() if isinstance(kind, type)]
        return next((x for x in classes if issubclass(x, usual) and x is not usual), usual)()
    if hasattr(module, "config") and hasattr(module, "layers"):
        return cache_utils.DynamicCache(config=module.config)
    layers = range(getattr(module, "layer_idx", None) or 0, -1, -1)
    both = cache_utils.LinearAttentionAndFullAttentionLayer
    return cache_utils.Cache(layers=[both(number_of_states=_STATES) for _ in layers])


def _device(module: Any) -> str:
    parameter = next(iter(module.parameters()), None)
    return "meta" if parameter is not None and parameter.is_meta else "cpu"
