"""``attnprof heads``: cost against the number of heads, and the optimum."""

from __future__ import annotations

from typer import Argument, Option

from attnprof.cli import options as opt
from attnprof.cli.output import DrawnOutput, environment
from attnprof.cli.request import (
    TAYLORSHIFT,
    Conditions,
    names_of,
    parse_size,
    parse_sizes,
    some_of,
)
from attnprof.closed_form.heads import KINDS, QUANTITIES, curves_of, divisors, heads_report
from attnprof.errors import RequestError


def heads_(
    mechanisms: list[str] | None = Argument(
        None, metavar="A B", help="Mechanisms (default taylor-direct taylor-efficient)."
    ),
    *,
    attention: opt.AttentionOption = None,
    d_model: str = Option("512", metavar="SIZE", help="Model width."),
    seq: str = Option("1024", metavar="SIZE", help="Sequence length."),
    heads: str | None = Option(None, metavar="SIZES", help="Only these; all divisors otherwise."),
    conditions: Conditions,
    scope: opt.ScopeOption = "core",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    to: DrawnOutput,
) -> None:
    """FLOPs and entries against the number of heads at fixed model width.

    The real optimum in the head width is the root of the cost's derivative; the best divisor is
    the head count that can be built.

    Example: attnprof heads --d-model 256 --seq 1025
    """
    width, length = parse_size(d_model, "--d-model"), parse_size(seq, "--seq")
    counts, workload = _head_counts(heads, width), conditions.workload(length, 1, width)
    names = list(dict.fromkeys(names_of(mechanisms or (), attention) or TAYLORSHIFT))
    curves = curves_of(
        conditions.configured(names), workload, scope,
        some_of(kind, KINDS, "--kind"), some_of(quantity, QUANTITIES, "--quantity"),
    )  # fmt: skip
    found = heads_report(curves, width, length, counts, environment())
    to.draw(found)
    to.deliver(found)


def _head_counts(text: str | None, width: int) -> list[int]:
    possible = divisors(width)
    asked = possible if text is None else sorted(parse_sizes(text, "--heads"))
    wrong = [h for h in asked if width % h]
    if wrong:
        raise RequestError(
            f"--heads {wrong[0]}: does not divide d_model {width}; "
            f"possible: {', '.join(str(h) for h in possible[:24])}{', …' if possible[24:] else ''}"
        )
    return asked
