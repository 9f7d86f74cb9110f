"""The answer of a comparison in one plain sentence, from its records."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from attnprof.record import CompareRecord, CrossoverRecord
from attnprof.record.crossovers import everywhere
from attnprof.units import amount, format_number, format_ratio, joined, plural, quantity_text

#: What is compared against, where it takes part.
USUAL = "standard"
#: Quantities of which there is less, not fewer, as a sentence says them.
AMOUNTS = {"bytes_moved": "memory traffic", "time": "time",
           **dict.fromkeys(("state_bytes", "state"), "decoding state"),
           **dict.fromkeys(("peak_bytes", "peak_entries", "memory"), "memory")}  # fmt: skip
#: Kinds of crossovers, the ones nearest to what runs first.
KINDS = ("measured", "predicted", "derived", "formula", "published")


def words_of(quantity: str) -> tuple[str, str, str]:
    """Less of a quantity, the least of it, and what it is: ``fewer``, ``the fewest``, ``FLOPs``."""
    if quantity in AMOUNTS:
        return "less", "the least", AMOUNTS[quantity]
    return "fewer", "the fewest", quantity_text(quantity)


def compare_answer(records: Sequence[CompareRecord], quantities: Sequence[str]) -> str:
    """Of the longest length: two beside each other, or who of several is lowest.

    Against the standard mechanism where it takes part, else against the one named first.
    """
    longest = max((row.seq_len for row in records), default=0)
    rows = [row for row in records if not row.skipped and row.seq_len == longest]
    named = [name for name in ("flops", "peak_bytes") if name in quantities] or quantities[:1]
    if len(rows) < 2 or any(getattr(row, name) is None for name in named for row in rows):
        return ""
    base = next((row for row in rows if row.mechanism == USUAL), rows[0])
    others = [row for row in rows if row is not base]
    said = _lowest(named, rows, base) if others[1:] else _beside(named, others[0], base)
    return f"At {plural(longest, 'token')} {said}." if said else ""


def _beside(named: Sequence[str], row: CompareRecord, base: CompareRecord) -> str:
    """What one needs of each, beside the base; nothing is a multiple of nothing."""
    sides = {words_of(name)[2]: (getattr(row, name), getattr(base, name)) for name in named}
    same = [what for what, (its, of_base) in sides.items() if its == of_base]
    times = [
        (format_ratio(its, of_base), what)
        for what, (its, of_base) in sides.items() if its != of_base and of_base
    ]  # fmt: skip
    said = [f"{ratio}× {'its' if same else 'the'} {what}" for ratio, what in times]
    if same:
        said = [f"the same {joined(same)} as {base.mechanism}", *said]
        return f"{row.mechanism} needs {joined(said)}"
    return f"{row.mechanism} needs {joined(said)} of {base.mechanism}" if said else ""


def _lowest(named: Sequence[str], rows: Sequence[CompareRecord], base: CompareRecord) -> str:
    """Who needs least of each, and how that compares with the base."""
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
            those = "those" if what.endswith("s") else "that"
            need += f" ({format_ratio(lowest, getattr(base, name))}× {those} of {base.mechanism})"
        said.setdefault(who, []).append(need)
    return joined(f"{who} {joined(needs)}" for who, needs in said.items())


def crossover_answer(records: Sequence[CrossoverRecord]) -> str:
    """From which length on who is cheaper, in each metric, for each group of head widths.

    Over another axis than the length: from which value on, for each group of lengths.
    """
    known = [row for row in records if not row.skipped]
    best = {  # of each metric what is nearest to what runs
        metric: min((row.kind for row in known if row.metric == metric), key=KINDS.index)
        for metric in {row.metric for row in known}
    }
    asked = sorted({row.given for row in records})
    said: dict[tuple[str, ...], list[CrossoverRecord]] = {}
    for _, group in groupby(
        (row for row in known if row.kind == best[row.metric]), key=lambda row: row.given
    ):
        rows = list(group)
        what = [t for row in rows for t in (row.metric, row.verdict, str(row.cheaper_above))]
        said.setdefault(tuple(what), []).extend(rows)
    return " ".join([*(_crossing(rows, asked) for rows in said.values()), *_contradictions(known)])


def _contradictions(rows: Sequence[CrossoverRecord]) -> Iterator[str]:
    """Yield a sentence for each prediction that was measured to be otherwise."""
    timed = [row for row in rows if row.metric == "time"]
    measured = {row.given: row for row in timed if row.kind == "measured"}
    for row in timed:
        found = measured.get(row.given)
        if row.kind != "predicted" or found is None:
            continue
        low, high, at = row.ci_low, row.ci_high, found.crossover_value
        beyond = at is not None and not (low or at) <= at <= (high or at)
        if row.verdict != found.verdict or beyond:
            yield f"Predicted was {_told(row)}, measured {_told(found)}."


def _told(row: CrossoverRecord) -> str:
    """Return what a row says: a crossing, or that one side is always faster."""
    if row.verdict == "crosses" and row.crossover_value is not None:
        return f"a crossing at {amount(row.over, round(row.crossover_value))}"
    if row.verdict == "several":
        return "several crossings"
    return f"{row.cheaper_above} faster everywhere"


def _crossing(rows: Sequence[CrossoverRecord], asked: Sequence[int]) -> str:
    """Sizes given of which the same is true, among all those that were asked for."""
    sizes = sorted({row.given for row in rows})
    between = [size for size in asked if sizes[0] <= size <= sizes[-1]]
    by_width, plainly = rows[0].over == "seq", "{}" if rows[0].over == "seq" else "{:,}"
    span = joined(map(plainly.format, sizes))
    if len(sizes) > 2 and between == sizes:
        span = f"{plainly.format(sizes[0])} to {plainly.format(sizes[-1])}"
    several = "s" * (len(sizes) > 1)
    where = f"For head width{several} {span}" if by_width else f"At {span} token"
    if not by_width and sizes != [1]:
        where += "s"
    return f"{where}, {_clauses(rows)}."


def _clauses(rows: Sequence[CrossoverRecord]) -> str:
    """Who needs less from where on, metric by metric."""
    clauses, before = list[str](), ("", "")
    for metric, group in groupby(sorted(rows, key=lambda row: row.metric), lambda r: r.metric):
        some = list(group)
        one, (less, _, what) = some[0], words_of(metric)
        above = one.cheaper_above
        other = one.mechanism_a if above == one.mechanism_b else one.mechanism_b
        where = f"{_where(some)}{_as_far_as_known(some)}"
        if above is None:
            clauses.append(f"both need the same {what} {where}")
        elif before == (above, other):
            clauses.append(f"{less} {what} {where}")
        else:
            clauses.append(f"{above} needs {less} {what} than {other} {where}")
        before = (above or "", other)
    return ", and ".join(clauses)


def _where(rows: Sequence[CrossoverRecord]) -> str:
    """From which length (or value) on; of several sizes given, the first and the last."""
    over = rows[0].over
    if rows[0].verdict in ("always", "never"):
        return everywhere(rows)
    several = " (below that they change places, too)" * (rows[0].verdict == "several")
    least, most = (pick(rows, key=lambda row: row.first_value or 0) for pick in (min, max))
    said = amount(over, least.first_value or 0)
    if least.first_value == most.first_value:
        same = least.method == "solved" and least.crossover_value == least.first_value
        return f"beyond {said}{several}" if same else f"from {said} on{several}"
    of = list[str]()
    for end in (least, most):
        sizes = [row.given for row in rows if row.first_value == end.first_value]
        if over == "seq":
            of.append(f"(head width{'s' * (len(sizes) > 1)} {joined(map(str, sizes))})")
        else:
            of.append(f"(at {joined(f'{size:,}' for size in sizes)})")
    return f"from {said} {of[0]} to {most.first_value:,} {of[1]} on{several}"


def _as_far_as_known(rows: Sequence[CrossoverRecord]) -> str:
    """Where derived formulas end, and that totals of code leave something out."""
    ends = {row.searched[-1][1] for row in rows if row.kind == "derived" and row.searched}
    last = ends.pop() if len(ends) == 1 else None
    end = f", up to {amount(rows[0].over, last)}" if last is not None else ""
    floor = any("at least" in (row.bound or "") for row in rows)
    return end + " (by totals that are at least these)" * floor


def heads_answer(
    optima: Sequence[Mapping[str, Any]], d_model: int, seq_len: int, *, every: bool
) -> str:
    """With how many heads each mechanism is cheapest, by its closed form where that was asked.

    ``every`` tells that all numbers of heads were tried that divide the width.
    """
    quantity = optima[0]["quantity"]
    kind = "formula" if any(one["kind"] == "formula" for one in optima) else "published"
    some = [one for one in optima if (one["quantity"], one["kind"]) == (quantity, kind)]
    same = [one["mechanism"] for one in some if one["trend"].startswith("is constant")]
    clauses, (_, least, what) = list[str](), words_of(quantity)
    for name, best in ((one["mechanism"], one["best_divisors"]) for one in some):
        if name not in same:
            needs = f" needs {least} {what}" * (not clauses)
            those = (f"{plural(h, 'head')} of width {d_model // h:,}" for h in best)
            clauses.append(f"{name}{needs} with {joined(those, 'or')}")
    if same:
        need = f"{joined(same)} need{'s' * (len(same) == 1)}"
        clauses.append(f"{need} the same {what} with any number of heads")
    among = "" if every else "among these numbers of heads, "
    return f"At {plural(seq_len, 'token')} and d_model {d_model:,}, {among}{joined(clauses)}."


def heatmap_answer(summary: Mapping[str, Any]) -> str:
    """How much more A needs than B on average, with the fewest heads and with the most."""
    means = {int(h): mean for h, mean in summary["mean_excess_percent"].items() if mean is not None}
    a, b, said = summary["mechanism_a"], summary["mechanism_b"], list[str]()
    if not means or a == b:
        return ""
    less, _, what = words_of(summary["quantity"])
    for heads in dict.fromkeys((min(means), max(means))):
        amount, than = _share(means[heads], less), "than" if means[heads] else "as"
        whom = f" {what} {than} {b}" * (not said)
        said.append(f"{amount}{whom} with {plural(heads, 'head')}")
    sizes = "all sizes with a ratio" if summary["null_cells"] else "all sizes"
    return f"On average over {sizes}, {a} needs {joined(said)}."


def _share(percent: float, less: str) -> str:
    """``30 % more``, and ``99.7 % fewer`` where whole ones would say nothing or everything."""
    whole = f"{abs(percent):,.0f}"
    if whole in ("0", "100") and percent != -100:
        whole = format_number(abs(percent), short=True)
    return f"{whole} % {'more' if percent > 0 else less}" if percent else "the same"


def growth_answer(faster: Sequence[str], unexpected: Sequence[str], asked: int) -> str:
    """How many mechanisms grow as claimed, and who does not."""
    if not faster:
        return f"All {asked} grow no faster with the length than they claim."
    why = f"{joined(unexpected)} without saying so" if unexpected else "for reasons told below"
    return (
        f"{asked - len(faster)} of {asked} grow no faster with the length than they claim; "
        f"{joined(faster)} {'grows' if len(faster) == 1 else 'grow'} faster, {why}."
    )
