"""Put a comparison's result into one plain sentence, from its records."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.units import format_number, format_ratio, joined, plural, quantity_text

if TYPE_CHECKING:
    from attnprof.record import CompareRecord

#: The mechanism that others are compared with, if it takes part.
USUAL = "standard"
#: Names of quantities with "less", not "fewer".
AMOUNTS = {"bytes_moved": "memory traffic", "time": "time",
           **dict.fromkeys(("bytes", "step_bytes"), "memory traffic a step"),
           **dict.fromkeys(("state_bytes", "state"), "decoding state"),
           **dict.fromkeys(("peak_bytes", "peak_entries", "memory"), "memory")}  # fmt: skip


def words_of(quantity: str) -> tuple[str, str, str]:
    """Return the words for a quantity: ``("fewer", "the fewest", "FLOPs")``."""
    if quantity in AMOUNTS:
        return "less", "the least", AMOUNTS[quantity]
    return "fewer", "the fewest", quantity_text(quantity)


def compare_answer(records: "Sequence[CompareRecord]", quantities: Sequence[str]) -> str:
    """Return how mechanisms compare at the longest length.

    Two are compared with each other; of several, the lowest in each quantity is named. The base is
    the standard mechanism if it takes part, else the first.
    """
    longest = max((row.seq_len for row in records), default=0)
    rows = [row for row in records if not row.skipped and row.seq_len == longest]
    named = [name for name in ("flops", "peak_bytes") if name in quantities] or quantities[:1]
    if len(rows) < 2 or any(getattr(row, name) is None for name in named for row in rows):
        return ""
    base = next((row for row in rows if row.mechanism == USUAL), rows[0])
    others = [row for row in rows if row is not base]
    said = (
        _compare_several(named, rows, base) if others[1:] else _compare_two(named, others[0], base)
    )
    return f"At {plural(longest, 'token')} {said}." if said else ""


def _compare_two(named: Sequence[str], row: "CompareRecord", base: "CompareRecord") -> str:
    """Return how much one mechanism needs of each quantity, as multiples of the base.

    A quantity that the base does not need at all has no multiple and is left out.
    """
    sides = {words_of(name)[2]: (getattr(row, name), getattr(base, name)) for name in named}
    same = [what for what, (value, usual) in sides.items() if value == usual]
    times = [
        (format_ratio(value, usual), what)
        for what, (value, usual) in sides.items() if value != usual and usual
    ]  # fmt: skip
    said = [f"{ratio}× {'its' if same else 'the'} {what}" for ratio, what in times]
    if same:
        said = [f"the same {joined(same)} as {base.mechanism}", *said]
        return f"{row.mechanism} needs {joined(said)}"
    return f"{row.mechanism} needs {joined(said)} of {base.mechanism}" if said else ""


def _compare_several(
    named: Sequence[str], rows: "Sequence[CompareRecord]", base: "CompareRecord"
) -> str:
    """Return the mechanisms that need least of each quantity, and how much that is of the base."""
    said: dict[str, list[str]] = {}
    for name in named:
        _, least, what = words_of(name)
        lowest = min(getattr(row, name) for row in rows)
        best = [row.mechanism for row in rows if getattr(row, name) == lowest]
        who = f"{joined(best)} need{'s' * (len(best) == 1)}"
        need = f"{least} {what}"
        if len(best) == len(rows):
            who, need = "all need", f"the same {what}"
        elif base.mechanism not in best:
            pronoun = "those" if what.endswith("s") else "that"
            need += f" ({format_ratio(lowest, getattr(base, name))}× {pronoun} of {base.mechanism})"
        said.setdefault(who, []).append(need)
    return joined(f"{who} {joined(needs)}" for who, needs in said.items())


def heads_answer(
    optima: Sequence[Mapping[str, Any]], d_model: int, seq_len: int, *, every: bool
) -> str:
    """Return with how many heads each mechanism is cheapest.

    Our closed forms decide if there are any, else printed ones. ``every``: all divisors of the
    width were tried.
    """
    quantity = optima[0]["quantity"]
    kind = "formula" if any(one["kind"] == "formula" for one in optima) else "published"
    some = [one for one in optima if (one["quantity"], one["kind"]) == (quantity, kind)]
    same = [one["mechanism"] for one in some if one["trend"].startswith("is constant")]
    clauses, (_, least, what) = list[str](), words_of(quantity)
    for name, best in ((one["mechanism"], one["best_divisors"]) for one in some):
        if name not in same:
            needs = f" needs {least} {what}" * (not clauses)
            head_counts = (f"{plural(h, 'head')} of width {d_model // h:,}" for h in best)
            clauses.append(f"{name}{needs} with {joined(head_counts, 'or')}")
    if same:
        need = f"{joined(same)} need{'s' * (len(same) == 1)}"
        clauses.append(f"{need} the same {what} with any number of heads")
    among = "" if every else "among these numbers of heads, "
    return f"At {plural(seq_len, 'token')} and d_model {d_model:,}, {among}{joined(clauses)}."


def heatmap_answer(summary: Mapping[str, Any]) -> str:
    """Return how much more A needs than B on average, with the fewest and the most heads."""
    means = {int(h): mean for h, mean in summary["mean_excess_percent"].items() if mean is not None}
    a, b, said = summary["mechanism_a"], summary["mechanism_b"], list[str]()
    if not means or a == b:
        return ""
    less, _, what = words_of(summary["quantity"])
    for heads in dict.fromkeys((min(means), max(means))):
        amount, than = _percent_text(means[heads], less), "than" if means[heads] else "as"
        whom = f" {what} {than} {b}" * (not said)
        said.append(f"{amount}{whom} with {plural(heads, 'head')}")
    sizes = "all sizes with a ratio" if summary["null_cells"] else "all sizes"
    return f"On average over {sizes}, {a} needs {joined(said)}."


def _percent_text(percent: float, less: str) -> str:
    """Return ``30 % more``; with decimals, ``99.7 % fewer``, where 0 or 100 would mislead."""
    whole = f"{abs(percent):,.0f}"
    if whole in ("0", "100") and percent != -100:
        whole = format_number(abs(percent), short=True)
    return f"{whole} % {'more' if percent > 0 else less}" if percent else "the same"


def growth_answer(faster: Sequence[str], unexpected: Sequence[str], count: int) -> str:
    """Return the sentence on how many mechanisms grow as claimed, and on the others."""
    if not faster:
        return f"All {count} grow no faster with the length than they claim."
    why = f"{joined(unexpected)} without saying so" if unexpected else "for reasons told below"
    return (
        f"{count - len(faster)} of {count} grow no faster with the length than they claim; "
        f"{joined(faster)} {'grows' if len(faster) == 1 else 'grow'} faster, {why}."
    )
