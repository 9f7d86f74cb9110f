"""Rules for operations entry by entry: arithmetic, comparisons, functions, activations, losses.

Counted as torch's CPU kernels compute them: a sign change inside a kernel is free; both sides of a
branch are computed, and counted.
"""

from typing import Any

import torch

from attnprof.trace.events import ORDERS
from attnprof.trace.rules.table import has_reals, is_factor, per_entry, rule, rules
from attnprof.trace.rules.units import NOTHING, OTHER, A, Counts, D, E, M, products, sums
from attnprof.trace.sizes import is_floating, numel, size_of

#: torch's numbers for a loss's reduction; 2 is a sum.
_NONE, _MEAN = 0, 1

per_entry("mul", M, 4 * M + 2 * A)
per_entry("lerp", M + 2 * A, 4 * M + 6 * A)
per_entry("floor_divide", D + OTHER)
per_entry("reciprocal fmod remainder", D)
per_entry("deg2rad rad2deg ldexp", M)
per_entry("neg", OTHER, 2 * OTHER)
per_entry("sgn", OTHER, 2 * M + A + OTHER + 2 * D)  # a complex one over its modulus
per_entry("maximum minimum fmax fmin clamp_min clamp_max sign floor ceil round trunc", OTHER)
per_entry("frac", OTHER + A)
per_entry("heaviside", 2 * OTHER)
per_entry("hypot", 2 * M + A + OTHER)
per_entry("linalg_cross", 2 * M + A)

# a complex one is a real one, a sine, a cosine and two products
per_entry("exp", E, E + 2 * OTHER + 2 * M)
per_entry("polar", NOTHING, 2 * M + 2 * OTHER)
per_entry("exp2 expm1", E)
per_entry("sqrt log log2 log10 log1p erf erfc", OTHER)
per_entry("polygamma", OTHER)
per_entry("lgamma digamma", OTHER)  # of likelihoods; the one is the other's derivative
per_entry("sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh", OTHER)
per_entry("rsqrt", OTHER + D)
per_entry("sinc", M + D + OTHER)
per_entry("logit", A + D + OTHER)
per_entry("logit_backward", A + M + D + 2 * OTHER)
per_entry("xlogy special_xlog1py special_entr", M + OTHER)
# maximum + log(1 + exp(-|difference|))
per_entry("logaddexp logaddexp2", 2 * A + E + 3 * OTHER)

per_entry("relu threshold threshold_backward", OTHER)
per_entry("sigmoid silu", E + A + D)
per_entry("sigmoid_backward tanh_backward", A + 2 * M)
per_entry("silu_backward", E + 3 * A + D + 3 * M)
per_entry("glu", E + A + D + M)
per_entry("mish", E + 2 * OTHER + M)
per_entry("mish_backward", 2 * E + 3 * A + D + 2 * OTHER + 4 * M)
per_entry("softplus", M + E + D + 2 * OTHER)
per_entry("softplus_backward", 2 * M + E + D + A + OTHER)
per_entry("log_sigmoid_forward", E + A + 3 * OTHER)
per_entry("log_sigmoid_backward", 2 * A + D + 2 * M + OTHER)
per_entry("elu celu selu", 3 * M + E + OTHER)
per_entry("leaky_relu leaky_relu_backward _prelu_kernel", M + OTHER)
per_entry("_prelu_kernel_backward", 2 * M + OTHER)
per_entry("rrelu_with_noise rrelu_with_noise_backward", M + OTHER)
per_entry("hardtanh hardtanh_backward", 2 * OTHER)
per_entry("hardswish hardswish_backward", A + M + D + 2 * OTHER)
per_entry("hardsigmoid", A + D + 2 * OTHER)
per_entry("hardsigmoid_backward", M + 2 * OTHER)
per_entry("softshrink", 2 * A + 2 * OTHER)
per_entry("softshrink_backward hardshrink hardshrink_backward", 2 * OTHER)
# times the mask, times the scale
per_entry("native_dropout _fused_dropout native_dropout_backward _masked_scale", 2 * M)
# 2/n·(x - target)·gradient
per_entry("mse_loss_backward", A + 2 * M)
# x - target compared with both ends; gradient/n, times the difference over β, or times δ
per_entry("smooth_l1_loss_backward", A + 3 * M + D + 2 * OTHER)
per_entry("huber_loss_backward", A + 4 * M + 2 * OTHER)


@rule("div")
def _divided(out: Any, call: Any) -> Counts:
    """Count a division; a complex one multiplies by the conjugate over the squared modulus."""
    if out.is_complex():
        real = hasattr(call.other, "is_complex") and not call.other.is_complex()
        return (2 * D if real else 6 * M + 3 * A + 2 * D) * numel(out)
    rounded = bool(getattr(call, "rounding_mode", None))
    return (D + OTHER * rounded) * numel(out) * out.is_floating_point()


@rule("pow")
def _power(out: Any, call: Any) -> Counts | None:
    """Count whole exponents as repeated products, halves as roots; others as one operation."""
    exponent = call.exponent
    if not is_floating(out):
        return NOTHING
    symbolic = isinstance(exponent, torch.SymInt)
    if not symbolic and not isinstance(exponent, int | float):  # a tensor
        return None if out.is_complex() else OTHER * numel(out)
    if exponent > 0 and (symbolic or float(exponent).is_integer()):
        times = size_of(exponent) if symbolic else int(exponent)
        return products(out) * (times - 1) * numel(out)
    if out.is_complex():
        return None
    by_exponent = {0: NOTHING, -1: D, -2: M + D, -0.5: OTHER + D}
    return (OTHER if symbolic else by_exponent.get(exponent, OTHER)) * numel(out)


def _weighted(call: Any) -> Counts:
    return M * (call.weight is not None)


def _reduced(losses: Any, call: Any) -> Counts:
    """Count the sum of losses, and the division by their number for a mean."""
    return A * numel(losses) * (call.reduction != _NONE) + D * (call.reduction == _MEAN)


rules(
    {
        "add sub rsub _add_relu": lambda out, c: (
            (sums(out) + products(out) * is_factor(c.alpha)) * numel(out)
        ),
        "addcmul": lambda out, c: (
            (products(out) * (1 + is_factor(c.value)) + sums(out)) * numel(out)
        ),
        "addcdiv": lambda out, c: (
            None if out.is_complex() else (A + D + M * is_factor(c.value)) * numel(out)
        ),
        "abs": lambda out, c: (
            (2 * M + A + OTHER if c.self.is_complex() else OTHER * is_floating(out)) * numel(out)
        ),
        "angle": lambda out, c: OTHER * numel(out) * is_floating(c.self),
        "ge gt le lt eq ne": lambda out, c: OTHER * numel(out) * has_reals(c),
        # |a - b| <= atol + rtol·|b|
        "isclose allclose": lambda _, c: (
            (2 * A + M + 3 * OTHER) * numel(c.self) * is_floating(c.self)
        ),
        "clamp": lambda out, c: (
            OTHER * ((c.min is not None) + (c.max is not None)) * numel(out) * is_floating(out)
        ),
        # an order is comparisons, by convention no FLOPs: how many depends on the method
        " ".join(ORDERS): lambda _, __: NOTHING,
        # x/2·(1 + erf(x/√2)), or x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
        "gelu": lambda out, c: (
            (3 * M + A if c.approximate == "none" else 6 * M + 2 * A) + OTHER
        ) * numel(out),
        # Φ(x) + x·φ(x) times the gradient; for tanh both sides of the product rule
        "gelu_backward": lambda out, c: (
            (7 * M + 2 * A + E if c.approximate == "none" else 12 * M + 5 * A) + OTHER
        ) * numel(out),
        "elu_backward": lambda out, c: (
            (3 * M + A if c.is_result else 5 * M + E) + OTHER
        ) * numel(out),
        # σ·g and (1 - σ)·σ·g·a for each of half the entries
        "glu_backward": lambda _, c: (E + 2 * A + D + 4 * M) * numel(c.grad_output),
        "mse_loss": lambda _, c: (A + M) * numel(c.self) + _reduced(c.self, c),
        # z = |x - t|, and z²/2β or z - β/2
        "smooth_l1_loss": lambda _, c: (
            (2 * A + 2 * M + D + 2 * OTHER) * numel(c.self) + _reduced(c.self, c)
        ),
        # z²/2 or δ·(z - δ/2)
        "huber_loss": lambda _, c: (
            (2 * A + 3 * M + 2 * OTHER) * numel(c.self) + _reduced(c.self, c)
        ),
        # the target's entry with its sign changed, weighted, averaged
        "nll_loss_forward nll_loss2d_forward": lambda _, c: (
            (OTHER * (c.reduction == _NONE) + _weighted(c)) * numel(c.target)
            + _reduced(c.target, c)
        ),
        # one value for all targets: the gradient over their number, its sign changed
        "nll_loss_backward nll_loss2d_backward": lambda _, c: (
            (OTHER + D * (c.reduction == _MEAN)) * numel(c.grad_output)
            + _weighted(c) * numel(c.target)
        ),
        # (t - 1)·max(log(1 - x), -100) - t·max(log x, -100)
        "binary_cross_entropy": lambda _, c: (
            (2 * A + 2 * M + 4 * OTHER + _weighted(c)) * numel(c.self) + _reduced(c.self, c)
        ),
        # gradient·(x - t)/max((1 - x)·x, ε), over the number of entries
        "binary_cross_entropy_backward": lambda out, c: (
            (2 * A + 2 * M + D + OTHER + _weighted(c) + D * (c.reduction == _MEAN)) * numel(out)
        ),
        # (1 - t)·x - log sigmoid(x); weights of positive entries are not known here
        "binary_cross_entropy_with_logits": lambda _, c: (
            None if c.pos_weight is not None
            else (3 * A + M + E + 3 * OTHER + _weighted(c)) * numel(c.self) + _reduced(c.self, c)
        ),
    }
)  # fmt: skip
