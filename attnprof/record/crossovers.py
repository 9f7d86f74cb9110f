"""The record of ``crossover``, and the words for the sizes that it varies and holds fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.record.base import Record, column
from attnprof.units import every


@dataclass(frozen=True, kw_only=True)
class CrossoverRecord(Record, commands=("crossover",)):
    """``crossover``: where two mechanisms cost the same, for one metric and kind.

    ``over`` is the size that varies, ``seq`` for the length. Its field is null; the fixed sizes
    have their own fields. ``crossover_value``, ``first_value``, ``all_crossings``, ``searched``,
    ``lengths``, ``ci_low`` and ``ci_high`` are values of the varying size; over lengths
    ``crossover_seq_len`` and ``first_seq_len`` equal the first two. ``method`` is ``solved``, as
    polynomials, for every length, or ``searched``, by integers on a grid up to 2**40 tokens and by
    bisection, where costs round sizes. ``searched`` lists the stretches of lengths that the verdict
    is for: the first and last length (null: no end), in steps of ``searched_step``. ``bound`` says
    which cost is a lower bound, or why no longer length was timed. ``ci_low`` and ``ci_high`` are
    an interval of 95 % of a time's crossing (null: unknown). ``lengths`` were timed or predicted,
    by so many ``timed_calls``; ``noisy`` says that other programs disturbed these.
    """

    metric: str = column("metric")
    unit: str = column("unit")
    kind: str = column("kind")
    source: str | None = column("source")
    mechanism_a: str = column("A")
    mechanism_b: str = column("B")
    params_a: dict[str, Any] = column("params of A", default=dict)
    params_b: dict[str, Any] = column("params of B", default=dict)
    head_dim: int | None = column("head dim", fmt="count")
    num_heads: int | None = column("heads", fmt="count")
    batch_size: int | None = column("batch", fmt="count")
    over: str = column("over", default="seq")
    seq_len: int | None = column("seq", "tokens", "count")
    d_model: int | None = column("d_model", fmt="count")
    dtype: str | None = column("dtype")
    scope: str = column("scope")
    phase: str = column("phase")
    causal: bool = column("causal")
    closed_form: str | None = column("closed form")
    method: str | None = column("method")
    crossover_seq_len: float | None = column("crossover", "tokens", "number")
    first_seq_len: int | None = column("from token", "tokens", "count")
    crossover_value: float | None = column("crossover value", fmt="number")
    first_value: int | None = column("from value", fmt="count")
    verdict: str = column("verdict")
    cheaper_below: str | None = column("cheaper below")
    cheaper_above: str | None = column("cheaper above")
    all_crossings: list[float] = column("all crossings", default=list)
    searched: list[list[int | None]] = column("searched", default=list)
    searched_step: int | None = column("every", fmt="count")
    bound: str | None = column("bound")
    ci_low: float | None = column("low", fmt="number")
    ci_high: float | None = column("high", fmt="number")
    timed_calls: int | None = column("timed calls", fmt="count")
    lengths: list[int] = column("lengths", default=list)
    noisy: str | None = column("noise")
    skipped: str | None = column("skipped")

    @property
    def fixed_size(self) -> int:
        """Return the size that is fixed in a row: head width over lengths, else length."""
        return (self.head_dim if self.over == "seq" else self.seq_len) or 0


# -- curves of figures -----------------------------------------------------------------
def places_of(curve: Mapping[str, Any]) -> list[int]:
    """Return the values of a curve's axis."""
    values: list[int] = curve["at"] if "at" in curve else curve["seq_len"]
    return values


def fixed_size_of(curve: Mapping[str, Any]) -> int:
    """Return the fixed size of a curve: its length, or over lengths its head width."""
    return int(curve["seq_len"] if "at" in curve else curve["head_dim"])


def everywhere(rows: Sequence[CrossoverRecord]) -> str:
    """Return where a verdict without a crossing holds: ``at every length from 64 on``."""
    over = rows[0].over
    if over == "seq":
        limited = [row for row in rows if row.searched]
        if any(len(r.searched) > 1 or r.searched[0][1] or r.searched_step != 1 for r in limited):
            return "at every length where both are known"
        first = max((row.searched[0][0] or 1 for row in limited), default=1)
        return "at every length" if first == 1 else f"at every length from {first:,} on"
    ends = {tuple(row.searched[0]) for row in rows if row.searched}
    if len(ends) != 1 or ends == {(1, None)}:
        return f"at every {every(over)}"
    low, last = ends.pop()
    return f"at every {every(over)} from {low or 1:,} {'on' if last is None else f'to {last:,}'}"
