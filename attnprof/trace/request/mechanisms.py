"""Registered mechanisms as targets: layer or core, at symbolic or concrete sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnprof import registry
from attnprof.blocks import assemble
from attnprof.blocks.decoding import DecodingStep, positioned
from attnprof.errors import RequestError
from attnprof.ops.layer import LayerSizes
from attnprof.trace.request.expressions import DEFAULT, Expression
from attnprof.trace.request.target import Input, Sizes, Target


def mechanism_target(
    spec: Any,
    scope: str = "layer",
    *,
    causal: bool = False,
    dtype: str = "float32",
    source: Any = None,
) -> Target:
    """A mechanism's layer on (B, N, h·d), or its core on q, k, v of (B, h, N, d).

    ``source`` is its torch module, where the registry does not find it by the mechanism's name.
    ``step`` of the target is one decoding step of token number N, where the mechanism decodes.
    """
    source = source or registry.module_of(spec.name)

    def make(sizes: Sizes) -> Any:
        made = _sizes(spec, sizes["N"], sizes["h"], sizes["d"])
        if scope == "layer":
            return assemble.build_layer(spec, source, made)
        return source.CORES[spec.name](spec, made)

    if scope == "core" and not spec.abilities.attend:
        raise RequestError(f"{spec.name} {spec.refusal('attend')}")
    flag = Input("causal", value=causal, literal=True)
    target = Target(
        spec.name, make, (*_inputs(spec, scope), flag), DEFAULT, dtype, frozenset({"causal"}),
        own=type(spec).__module__.startswith("attnprof."),
    )  # fmt: skip
    return replace(target, step=_step(spec, target, scope)) if spec.abilities.decode else target


def _inputs(spec: Any, scope: str, tokens: str = "N") -> tuple[Input, ...]:
    if scope == "layer":
        return (Input("x", tuple(map(Expression, ("B", tokens, "h*d")))),)
    heads = {"q": "h", "k": str(spec.kv_heads or "h"), "v": str(spec.kv_heads or "h")}
    return tuple(
        Input(name, tuple(map(Expression, ("B", count, tokens, "d"))))
        for name, count in heads.items()
    )


def _step(spec: Any, target: Target, scope: str) -> Target:
    """One token more, after N - 1 of them."""
    import torch

    inputs = _inputs(spec, scope, "1")

    def make(sizes: Sizes) -> Any:
        module = target.make(sizes)
        like = (torch.empty(0),) if scope == "core" else ()
        state = module.init_state(sizes["B"], *like)

        def rows() -> list[Any]:
            return [item.made(sizes, target.dtype, "cpu") for item in inputs]

        state = positioned(module, state, sizes["N"] - 1, rows)
        return DecodingStep(module, state)

    return replace(target, make=make, inputs=inputs, keywords=frozenset())


def _sizes(spec: Any, n: Any, h: Any, d: Any) -> LayerSizes:
    """Checked where they are numbers; a symbol cannot be compared and is taken as it is."""
    if all(isinstance(size, int) for size in (n, h, d)):
        return assemble.checked_sizes(spec, h * d, h, n)
    return LayerSizes(h, d, spec.kv_heads or h, d, n)
