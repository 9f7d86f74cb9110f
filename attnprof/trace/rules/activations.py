"""Activations and their backward operations, as torch's CPU kernels compute them.

A sign change inside a kernel is free; both sides of a branch are computed, and counted.
"""

from __future__ import annotations

from typing import Any

from attnprof.trace.rules.table import Counts, entries, per_entry, rule
from attnprof.trace.sizes import is_floating, numel


@rule("gelu")
def _gelu(out: Any, _x: Any, *, approximate: str = "none") -> Counts:
    """x/2·(1 + erf(x/√2)), or x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""
    if approximate == "none":
        return entries(numel(out), multiplications=3, additions=1, other=1)
    return entries(numel(out), multiplications=6, additions=2, other=1)


@rule("gelu_backward")
def _gelu_backward(out: Any, *_args: Any, approximate: str = "none") -> Counts:
    """Φ(x) + x·φ(x) times the gradient; for tanh both sides of the product rule."""
    if approximate == "none":
        return entries(numel(out), multiplications=7, additions=2, other=1, exponentials=1)
    return entries(numel(out), multiplications=12, additions=5, other=1)


@rule("elu_backward")
def _elu_backward(
    out: Any, _grad: Any, _alpha: Any, _scale: Any, _input: Any, is_result: bool, *_rest: Any
) -> Counts:
    if is_result:
        return entries(numel(out), multiplications=3, additions=1, other=1)
    return entries(numel(out), multiplications=5, exponentials=1, other=1)


@rule("glu_backward")
def _glu_backward(_out: Any, grad: Any, *_args: Any) -> Counts:
    """σ·g and (1 - σ)·σ·g·a for each of half the entries."""
    return entries(numel(grad), exponentials=1, additions=2, divisions=1, multiplications=4)


@rule("_prelu_kernel_backward")
def _prelu_backward(_out: Any, grad: Any, *_args: Any) -> Counts:
    return entries(numel(grad), multiplications=2, other=1)


@rule("hardtanh")
def _hardtanh(out: Any, *_args: Any) -> Counts:
    return entries(numel(out), real=is_floating(out), other=2)


@rule("native_dropout", "_fused_dropout")
def _dropout(_out: Any, x: Any, *_args: Any) -> Counts:
    """Times the mask, times the scale."""
    return entries(numel(x), multiplications=2)


@rule("native_dropout_backward", "_masked_scale")
def _dropout_backward(out: Any, *_args: Any) -> Counts:
    return entries(numel(out), multiplications=2)


per_entry("relu threshold threshold_backward", other=1)
per_entry("sigmoid silu", exponentials=1, additions=1, divisions=1)
per_entry("sigmoid_backward tanh_backward", additions=1, multiplications=2)
per_entry("silu_backward", exponentials=1, additions=3, divisions=1, multiplications=3)
per_entry("glu", exponentials=1, additions=1, divisions=1, multiplications=1)
per_entry("mish", exponentials=1, other=2, multiplications=1)
per_entry("mish_backward", exponentials=2, additions=3, divisions=1, other=2, multiplications=4)
per_entry("softplus", multiplications=1, exponentials=1, divisions=1, other=2)
per_entry("softplus_backward", multiplications=2, exponentials=1, divisions=1, additions=1, other=1)
per_entry("log_sigmoid_forward", exponentials=1, additions=1, other=3)
per_entry("log_sigmoid_backward", additions=2, divisions=1, multiplications=2, other=1)
per_entry("elu celu selu", multiplications=3, exponentials=1, other=1)
per_entry("leaky_relu leaky_relu_backward _prelu_kernel", multiplications=1, other=1)
per_entry("rrelu_with_noise rrelu_with_noise_backward", multiplications=1, other=1)
per_entry("hardtanh_backward", other=2)
per_entry("hardswish", additions=1, multiplications=1, divisions=1, other=2)
per_entry("hardswish_backward", additions=1, multiplications=1, divisions=1, other=2)
per_entry("hardsigmoid", additions=1, divisions=1, other=2)
per_entry("hardsigmoid_backward", multiplications=1, other=2)
per_entry("softshrink", additions=2, other=2)
per_entry("softshrink_backward hardshrink hardshrink_backward", other=2)
