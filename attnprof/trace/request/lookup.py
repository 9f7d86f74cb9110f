"""Find what a name or an object stands for: the target of a mechanism, a module or a function."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof import registry
from attnprof.blocks import core
from attnprof.blocks.cache import DecodingStep, positioned
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.ops.layer import LayerSizes
from attnprof.trace.request.alternatives import target_that_runs
from attnprof.trace.request.given import Request
from attnprof.trace.request.modules import of_class, of_factory, of_function, of_instance
from attnprof.trace.request.target import DEFAULT, Input, Sizes, Target
from attnprof.trace.request.texts import Texts, parse_arguments, parse_inputs, symbols_in
from attnprof.user_code import is_place, loaded


def target_of(
    thing: Any,
    args: Texts = None,
    inputs: Texts = None,
    params: Mapping[str, Any] | None = None,
    scope: str | None = None,
    causal: bool = False,
    dtype: str = "float32",
    *,
    name: str = "",
    width: int | None = None,
) -> Target:
    """Return the target of a mechanism's id, ``path.py:Name``, ``module:Name`` or an object.

    An object is a module class, a module (of model width ``width``), a function, or a factory of
    modules. ``args`` are constructor arguments (``name=expr`` texts or a mapping), ``inputs`` those
    of the call (``name: dims``); what is left out is guessed, as the target's ``notes`` say.
    ``params`` and ``scope`` belong to registered mechanisms. Raises :class:`RequestError`.
    """
    from torch import nn

    name = name or (thing if isinstance(thing, str) else _name(thing))
    if isinstance(thing, str):
        thing = loaded(thing) if is_place(thing) else type(registry.derivable(thing))
    is_class = isinstance(thing, type)
    if is_class and issubclass(thing, Mechanism):
        _refuse(f"is for your own modules; {name} takes --set name=value", arg=args, input=inputs)
        spec = registry.configured([name], params or {})[0]
        return mechanism_target(spec, scope or "layer", causal=causal, dtype=dtype)
    why = f"is for registered mechanisms; {name} takes --arg and --input"
    _refuse(why, set=params, scope=scope)
    asked = parse_inputs(inputs)
    given = parse_arguments(args, {*DEFAULT, *symbols_in(asked.values())})
    request = Request(name, given, asked, causal, dtype)
    if isinstance(thing, nn.Module):
        build = partial(of_instance, thing, width=width)
        return build(request) if width else target_that_runs(build, request, thing)
    if is_class and issubclass(thing, nn.Module):
        return target_that_runs(partial(of_class, thing), request, thing)
    if is_class or not callable(thing):
        is_a = "a class, but no nn.Module" if is_class else repr(thing)[:60]
        raise RequestError(f"{name} is {is_a}: point at a module class, a module or a function")
    made = of_factory if request.is_factory(thing) else of_function
    return target_that_runs(partial(made, thing), request, thing)


def _name(thing: Any) -> str:
    """Return a name for a Python object."""
    named = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return "module" if named.__name__ == "<lambda>" else str(named.__name__)


def _refuse(why: str, **flags: Any) -> None:
    """Raise :class:`RequestError` for flags that were typed and do not apply."""
    for flag, value in flags.items():
        if value:
            raise RequestError(f"--{flag} {why}")


def mechanism_target(
    spec: Any,
    scope: str = "layer",
    *,
    causal: bool = False,
    dtype: str = "float32",
    source: Any = None,
) -> Target:
    """Return a mechanism's layer on (B, N, h·d), or its core on q, k, v of (B, h, N, d).

    ``source`` is its torch module, if the registry does not find it by the mechanism's name. The
    target's ``step`` decodes token number N, if the mechanism decodes.
    """
    source = source or registry.module_of(spec.name)

    def make(sizes: Sizes) -> Any:
        n, h, d = (sizes[name] for name in "Nhd")
        if all(isinstance(size, int) for size in (n, h, d)):
            made = core.checked_sizes(spec, h * d, h, n)
        else:  # a symbol cannot be compared and is taken as it is
            made = LayerSizes(h, d, spec.kv_heads or h, d, n)
        if scope == "layer":
            return core.build_layer(spec, source, made)
        return source.CORES[spec.name](spec, made)

    if scope == "core" and not spec.abilities.attend:
        raise RequestError(f"{spec.name} {spec.refusal('attend')}")
    flag = Input("causal", value=causal, literal=True)
    is_ours = type(spec).__module__.startswith("attnprof.")
    target = Target(
        spec.name, make, (*_inputs(spec, scope), flag), DEFAULT, dtype, frozenset({"causal"}),
        own=is_ours, in_blocks=is_ours,
    )  # fmt: skip
    return replace(target, step=_step(spec, target, scope)) if spec.abilities.decode else target


def _inputs(spec: Any, scope: str, tokens: str = "N") -> tuple[Input, ...]:
    dims = {"x": f"B, {tokens}, h*d"}
    if scope != "layer":
        heads = spec.kv_heads or "h"
        dims = {"q": f"B, h, {tokens}, d", **dict.fromkeys("kv", f"B, {heads}, {tokens}, d")}
    return tuple(parse_inputs(dims).values())


def _step(spec: Any, target: Target, scope: str) -> Target:
    """Return the decoding step on one token, after N - 1 earlier ones."""
    import torch

    step = replace(target, inputs=_inputs(spec, scope, "1"), keywords=frozenset())

    def make(sizes: Sizes) -> Any:
        module = target.make(sizes)
        like = (torch.empty(0),) if scope == "core" else ()
        state = module.init_state(sizes["B"], *like)
        state = positioned(module, state, sizes["N"] - 1, lambda: step.call_inputs(sizes)[0])
        return DecodingStep(module, state)

    return replace(step, make=make)
