"""A derived cost as a function of a workload: what a crossover needs of one of its two sides."""

from __future__ import annotations

from collections.abc import Callable

from attnprof.costs import Number
from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.derivation import told
from attnprof.trace.deriving import derive_target
from attnprof.trace.evaluating import evaluate
from attnprof.trace.shots import TooLongError
from attnprof.trace.target import Target
from attnprof.trace.verification import A_LONG_RUN, runner
from attnprof.workload import Workload

#: What a metric of a crossover is called here.
QUANTITY_OF = {"flops": "flops", "memory": "peak_bytes"}


def derived_cost(target: Target, metric: str, workload: Workload) -> Callable[[Workload], Number]:
    """The derived FLOPs or peak bytes of a target, for any length and head width.

    Batch and heads are the workload's. Raises :class:`RequestError` where the target has other
    sizes, :class:`CannotRunError` where a formula is wanting and a run takes too long.
    """
    others = set(target.symbols) - {"B", "N", "h", "d"}
    if others:
        raise RequestError(
            f"{target.name} has sizes {', '.join(sorted(others))}: to compare by length and head "
            "width write its --arg and --input with B, N, h and d"
        )
    sizes = {"B": workload.batch_size, "h": workload.num_heads}
    known = {name: size for name, size in sizes.items() if name in target.symbols}
    found = derive_target(target.fixed(**known), [workload.phase])
    quantity, forms = QUANTITY_OF[metric], found.phases[workload.phase]
    expression = forms.formulas[quantity].expression
    counted = runner(target.fixed(**known), [workload.phase], A_LONG_RUN)

    def cost(asked: Workload) -> Number:
        """By the formula where it holds, else by a run at that shape."""
        shape = {"N": asked.seq_len, "d": asked.head_dim}
        shape = {name: size for name, size in shape.items() if name in found.symbols}
        # a single token, or a width of one, ends a curve that the formula draws: it may say so
        inside = {name: max(size, 2) if isinstance(size, int) else size
                  for name, size in shape.items()}  # fmt: skip
        if expression is not None and forms.holds(inside):
            return evaluate(expression, shape)
        try:
            return counted(shape)[workload.phase][quantity]
        except TooLongError as error:
            raise CannotRunError(f"{target.name} at {told({**sizes, **shape})}: {error}") from error

    return cost
