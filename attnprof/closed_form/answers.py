"""Put the result of a report into one sentence, from its records."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.units import format_number, format_ratio, joined, plural, words_of

if TYPE_CHECKING:
    from attnprof.record import CompareRecord

#: The mechanism that others are compared with, if it takes part.
BASE = "standard"


def compare_answer(records: "Sequence[CompareRecord]", quantities: Sequence[str]) -> str:
    """Return how mechanisms compare in FLOPs and memory at the longest length.

    Two are compared with each other: *At 4,096 tokens linear needs 0.21× the FLOPs and 0.038× the
    memory of standard.* Of several, the lowest in each quantity is named. The base is ``standard``
    if it takes part, else the first. The answer is empty if it would need a missing number.
    """
    longest = max((row.seq_len for row in records), default=0)
    rows = [row for row in records if not row.skipped and row.seq_len == longest]
    compared = [name for name in ("flops", "peak_bytes") if name in quantities] or quantities[:1]
    if len(rows) < 2 or any(getattr(row, name) is None for name in compared for row in rows):
        return ""
    base = next((row for row in rows if row.mechanism == BASE), rows[0])
    others = [row for row in rows if row is not base]
    clause = (
        _compare_several(compared, rows, base) if others[1:]
        else _compare_two(compared, others[0], base)
    )  # fmt: skip
    return f"At {plural(longest, 'token')} {clause}." if clause else ""


def _compare_two(compared: Sequence[str], row: "CompareRecord", base: "CompareRecord") -> str:
    """Return how much one mechanism needs of each quantity, as multiples of the base.

    A quantity that the base does not need at all has no multiple and is left out.
    """
    sides = {
        words_of(name, row.phase)[2]: (getattr(row, name), getattr(base, name)) for name in compared
    }
    same = [noun for noun, (value, base_value) in sides.items() if value == base_value]
    needs = [
        f"{format_ratio(value, base_value)}× {'its' if same else 'the'} {noun}"
        for noun, (value, base_value) in sides.items() if value != base_value and base_value
    ]  # fmt: skip
    if same:
        needs = [f"the same {joined(same)} as {base.mechanism}", *needs]
        return f"{row.mechanism} needs {joined(needs)}"
    return f"{row.mechanism} needs {joined(needs)} of {base.mechanism}" if needs else ""


def _compare_several(
    compared: Sequence[str], rows: "Sequence[CompareRecord]", base: "CompareRecord"
) -> str:
    """Return the mechanisms that need least of each quantity, and how much that is of the base."""
    needs_of: dict[str, list[str]] = {}
    for name in compared:
        _, least, noun = words_of(name, base.phase)
        lowest = min(getattr(row, name) for row in rows)
        best = [row.mechanism for row in rows if getattr(row, name) == lowest]
        who = f"{joined(best)} need{'s' * (len(best) == 1)}"
        need = f"{least} {noun}"
        if len(best) == len(rows):
            who, need = "all need", f"the same {noun}"
        elif base.mechanism not in best:
            pronoun = "those" if noun.endswith("s") else "that"
            need += f" ({format_ratio(lowest, getattr(base, name))}× {pronoun} of {base.mechanism})"
        needs_of.setdefault(who, []).append(need)
    return joined(f"{who} {joined(needs)}" for who, needs in needs_of.items())


def heads_answer(
    optima: Sequence[Mapping[str, Any]], d_model: int, seq_len: int, *, every: bool
) -> str:
    """Return with how many heads each mechanism is cheapest, in the first quantity of ``optima``.

    Our closed forms decide if there are any, else printed ones. ``every``: all divisors of the
    width were tried.
    """
    quantity = optima[0]["quantity"]
    kind = "formula" if any(one["kind"] == "formula" for one in optima) else "published"
    compared = [one for one in optima if (one["quantity"], one["kind"]) == (quantity, kind)]
    constant = [one["mechanism"] for one in compared if one["trend"].startswith("is constant")]
    clauses, (_, least, noun) = list[str](), words_of(quantity)
    for name, best in ((one["mechanism"], one["best_divisors"]) for one in compared):
        if name not in constant:
            needs = f" needs {least} {noun}" * (not clauses)
            head_counts = (f"{plural(h, 'head')} of width {d_model // h:,}" for h in best)
            clauses.append(f"{name}{needs} with {joined(head_counts, 'or')}")
    if constant:
        need = f"{joined(constant)} need{'s' * (len(constant) == 1)}"
        clauses.append(f"{need} the same {noun} with any number of heads")
    among = "" if every else "among these numbers of heads, "
    return f"At {plural(seq_len, 'token')} and d_model {d_model:,}, {among}{joined(clauses)}."


def heatmap_answer(summary: Mapping[str, Any]) -> str:
    """Return how much more A needs than B on average, with the fewest and the most heads."""
    means = {int(h): mean for h, mean in summary["mean_excess_percent"].items() if mean is not None}
    a, b, clauses = summary["mechanism_a"], summary["mechanism_b"], list[str]()
    if not means or a == b:
        return ""
    less, _, noun = words_of(summary["quantity"])
    for heads in dict.fromkeys((min(means), max(means))):
        amount, than = _percent_text(means[heads], less), "than" if means[heads] else "as"
        whom = f" {noun} {than} {b}" * (not clauses)
        clauses.append(f"{amount}{whom} with {plural(heads, 'head')}")
    sizes = "all sizes with a ratio" if summary["null_cells"] else "all sizes"
    return f"On average over {sizes}, {a} needs {joined(clauses)}."


def _percent_text(percent: float, less: str) -> str:
    """Return ``30 % more``; with decimals, ``99.7 % fewer``, where 0 or 100 would mislead."""
    whole = f"{abs(percent):,.0f}"
    if whole in ("0", "100") and percent != -100:
        whole = format_number(abs(percent), short=True)
    return f"{whole} % {'more' if percent > 0 else less}" if percent else "the same"


def growth_answer(faster: Sequence[str], unexpected: Sequence[str], count: int) -> str:
    """Return how many of ``count`` mechanisms grow no faster than claimed, and which do.

    ``unexpected`` are those of ``faster`` whose documentation does not say so.
    """
    if not faster:
        return f"All {count} grow no faster with the length than they claim."
    why = f"{joined(unexpected)} without saying so" if unexpected else "for reasons told below"
    return (
        f"{count - len(faster)} of {count} grow no faster with the length than they claim; "
        f"{joined(faster)} {'grows' if len(faster) == 1 else 'grow'} faster, {why}."
    )
