"""Bytes of a step on one rank: activations of a prompt, and what is sent."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil

from attnprof.models.fit_parts import HALF, LONGEST, SINGLE, FitModel, FitOptions, layer_share


def activation_bytes(model: FitModel, options: FitOptions) -> tuple[int, str]:
    """Return the bytes of activations of a chunk of a prompt, and their formula in T tokens.

    A convention, not a measurement: the residual stream, the input and the result of a block, and
    gate, up and product of the feed-forward network, in half precision; logits of B tokens in
    float32 and half.
    """
    tokens = min(options.chunk, options.seq_len * options.batch_size)
    width = 4 * model.sizes.hidden + -(-model.inner // options.tensor_parallel)
    words = _words(model) * (SINGLE + HALF)
    formula = f"{HALF * width}*T + {words}*B"
    return HALF * width * tokens + words * options.batch_size, formula


def _words(model: FitModel) -> int:
    tables = model.sizes.entries("head") or model.sizes.entries("embedding")
    return tables // model.sizes.hidden if model.sizes.hidden else 0


def sent_bytes(model: FitModel, options: FitOptions, tokens: int) -> int:
    """Return the bytes that a rank sends in a step of so many tokens, in half precision.

    Two all-reductions a layer by rings, 2 (t - 1)/t of a row each; among groups of ranks with other
    sequences an all-to-all to experts and back; a row to the next stage; with context parallelism,
    results and their sums to all others.
    """
    row = HALF * model.sizes.hidden * tokens
    t, c = options.tensor_parallel, options.context_parallel
    groups = max(1, options.expert_parallel // t)
    layers = -(-model.layers // options.pipeline)
    total = layers * 2 * Fraction(2 * (t - 1), t) * row
    if "expert" in model.sizes.weights:
        total += (
            2
            * Fraction(groups - 1, groups)
            * row
            * model.chosen
            * ceil(model.expert_layers * layer_share(model, options))
        )
    total += row if options.pipeline > 1 else 0
    heads = max((x.heads * (x.value_dim + 1) for x in model.sizes.attention), default=0)
    total += layers * (c - 1) * SINGLE * tokens * -(-heads // t)
    return ceil(total)


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits, if all smaller ones do; :data:`LONGEST` at most."""
    low, high = 0, 1
    while high < LONGEST and fits(high):
        low, high = high, 2 * high
    if high >= LONGEST:
        return LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
