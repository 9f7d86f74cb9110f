"""The counts that document 002 prints for self-attention: Tables 3 and 5, untouched."""

from __future__ import annotations

from collections.abc import Callable

from attnprof.costs import Number, exact_div
from attnprof.mechanism import Published
from attnprof.workload import Workload

#: a printed form in l (or t), d, and the number of heads
Form = Callable[[Number, Number, Number], Number]

#: one sequence of length n, causal, without biases
TRAINING: dict[str, Form] = {
    "multiplications": lambda n, d, _: n**2 * d + 4 * n * d**2 + n * d,
    "additions": lambda n, d, h: n**2 * d + 4 * n * d**2 - 4 * n * d - n * h,
    "divisions": lambda n, _, h: h * n**2 + h * n,
    "exponentials": lambda n, _, h: exact_div(h * n**2 + h * n, 2),
    "parameters": lambda _, d, __: 4 * d**2,
}
#: token number t; the additions are misprinted: the table's own terms give 2td + 4d² - 5d - h
INFERENCE: dict[str, Form] = {
    "multiplications": lambda t, d, _: 2 * t * d + 4 * d**2,
    "additions": lambda t, d, h: 2 * t * d - t * h + t + 4 * d**2 - 5 * d - 1,
    "divisions": lambda t, _, h: 2 * t * h,
    "exponentials": lambda t, _, h: t * h,
}


def published_counts() -> tuple[Published, ...]:
    """Every printed count of self-attention, training and inference."""
    return (
        *(_entry("002-T3", name, "forward", form) for name, form in TRAINING.items()),
        *(_entry("002-T5", name, "decode", form) for name, form in INFERENCE.items()),
    )


def _entry(source: str, quantity: str, phase: str, form: Form) -> Published:
    return Published(
        source, quantity, scope="layer", phase=phase, convention="operations",
        formula=lambda w: _evaluated(form, w),
        causal=phase == "forward",  # a decoding step has no mask
    )  # fmt: skip


def _evaluated(form: Form, workload: Workload) -> Number:
    return form(workload.seq_len, workload.d_model, workload.num_heads)
