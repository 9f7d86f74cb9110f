"""Decoding steps of user modules: one token, with the cache that N - 1 earlier tokens leave."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import isfunction, signature
from typing import Any

from attnprof.blocks.cache import CachedCall, DecodingStep, positioned
from attnprof.errors import RequestError
from attnprof.trace.request.configurations import names_around
from attnprof.trace.request.signatures import Parameters
from attnprof.trace.request.target import Expression, Input, Sizes, Target

#: Arguments of a forward pass for the keys and values of earlier tokens.
_CACHES = (
    "past_key_values", "past_key_value", "layer_past", "kv_cache", "cache", "past", "past_kv",
    "state", "incremental_state",
)  # fmt: skip


def with_step(target: Target, taken: Parameters, kind: Any) -> Target:
    """Return the target with a decoding step, if the module takes a cache or has a step.

    The cache is what a pass over the earlier tokens leaves: an object of transformers if the code
    of ``kind`` (the module's class) knows that class, else the last result of the pass. A module's
    own step is ``step(x_t, state)``; its ``init_state`` takes ``batch_size``, or inputs by name,
    such as an encoder's rows.
    """
    if "N" not in target.symbols:
        return target
    name, scope = next((name for name in _CACHES if name in taken), ""), names_around(kind)
    if not name:
        return _with_own_step(target, kind)
    inputs = tuple(item for item in target.inputs if item.name != name)
    keywords = target.keywords - {name}
    step = replace(
        target,
        inputs=tuple(map(_of_one_token, inputs)),
        keywords=keywords,
        make=partial(
            _call_with_cache, replace(target, inputs=inputs, keywords=keywords), name, taken, scope
        ),
    )
    return replace(target, step=step)


def _with_own_step(target: Target, kind: Any) -> Target:
    """Return the target with a step on one token of its first input that makes no state."""
    begins, steps = (getattr(kind, name, None) for name in ("init_state", "step"))
    if not (isfunction(begins) and callable(steps)):
        return target
    asked = {name for name in signature(begins).parameters if name != "self"}
    tokens = [item for item in target.inputs if item.name not in asked]
    before = tuple(item for item in target.inputs if item.name in asked)
    if not tokens or asked - {"batch_size"} != {*_names(before)}:
        return target
    length = "N" if "N" in (dim.text for dim in tokens[0].dims) else "M"
    step = replace(target, inputs=(_of_one_token(tokens[0], length),), keywords=frozenset())
    source = replace(target, inputs=before, keywords=frozenset(_names(before)))

    def make(sizes: Sizes) -> DecodingStep:
        import torch

        module = target.make(sizes).eval()
        token = partial(_token, step, sizes)
        given = dict(source.call_inputs(sizes, _device(module))[1])
        if "batch_size" in asked:
            given["batch_size"] = token()[0].shape[0]
        with torch.no_grad():
            state = module.init_state(**given)
        return DecodingStep(module, positioned(module, state, sizes[length] - 1, token))

    return replace(target, step=replace(step, make=make))


def _names(inputs: Iterable[Input]) -> list[str]:
    return [item.name for item in inputs]


def _token(step: Target, sizes: Sizes) -> Any:
    return step.call_inputs(sizes)[0]


def _of_one_token(item: Input, length: str = "N") -> Input:
    dims = (Expression("1") if dim.text == length else dim for dim in item.dims)
    return replace(item, dims=tuple(dims))


def _call_with_cache(
    target: Target, name: str, taken: Parameters, scope: Mapping[str, Any], sizes: Sizes
) -> CachedCall:
    """Return the module as a call on the last token, with the cache of the others.

    That cache is extrapolated from those after two and three tokens: a size that differs grows with
    N.
    """
    module = target.make(sizes).eval()
    named = {"use_cache": True} if "use_cache" in taken else {}
    two, three = (
        _cache_after(target, module, {**sizes, "N": n}, name, named, scope) for n in (2, 3)
    )
    return CachedCall(module, {**named, name: _extended(two, three, sizes["N"] - 1, set())})


def _cache_after(
    target: Target,
    module: Any,
    sizes: Sizes,
    name: str,
    named: Mapping[str, Any],
    scope: Mapping[str, Any],
) -> Any:
    """Return the cache that a pass over ``sizes["N"]`` tokens leaves."""
    import torch

    cache = _empty_cache(scope)
    before, others = target.call_inputs(sizes, _device(module))
    with torch.no_grad():
        result = module(*before, **{**others, **named, name: cache})
    values = list(result.values()) if isinstance(result, Mapping) else result
    if cache is None and isinstance(values, torch.Tensor):
        raise RequestError(
            f"{target.name} has no decoding step: with {name}=None it gives one tensor, and no "
            "cache for the next token; use --phase forward"
        )
    return values[-1] if cache is None else cache


def _extended(two: Any, three: Any, tokens: Any, seen: set[int]) -> Any:
    """Return the cache after ``tokens`` tokens, extrapolated from those after two and three."""
    import torch

    if isinstance(two, torch.Tensor):
        shape = [
            tokens + a - 2 if b == a + 1 else a for a, b in zip(two.shape, three.shape, strict=True)
        ]
        return two if two.shape == three.shape else two.new_zeros(shape)
    if isinstance(two, list | tuple):
        made = [_extended(a, b, tokens, seen) for a, b in zip(two, three, strict=True)]
        return made if isinstance(two, list) else tuple(made)
    if isinstance(two, dict):
        return {name: _extended(value, three[name], tokens, seen) for name, value in two.items()}
    if isinstance(two, int) and not isinstance(two, bool):
        return tokens + two - 2 if three == two + 1 else two
    if hasattr(two, "__dict__") and id(two) not in seen and not isinstance(two, type):
        seen.add(id(two))
        for name, value in vars(two).items():
            vars(two)[name] = _extended(value, vars(three)[name], tokens, seen)
    return two


def _empty_cache(scope: Mapping[str, Any]) -> Any:
    """Return an empty cache of transformers if the code imports that class, else None."""
    if not {"Cache", "DynamicCache"} & set(scope):
        return None
    from transformers.cache_utils import DynamicCache

    return DynamicCache()


def _device(module: Any) -> str:
    held = next(iter(module.parameters()), None)
    return "meta" if held is not None and held.is_meta else "cpu"
