"""The answer of a comparison in one plain sentence, from its records."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import floor, log10
from typing import Any

from attnprof.costs import Number
from attnprof.record import CompareRecord, CrossoverRecord

#: What is compared against, where it takes part.
USUAL = "standard"
#: Quantities as a sentence says them: less of it, the least of it, more of it, and what it is.
WORDS = {
    "flops": ("fewer", "the fewest", "more", "FLOPs"),
    "matmul_flops": ("fewer", "the fewest", "more", "matmul FLOPs"),
    "operations": ("fewer", "the fewest", "more", "operations"),
    "bytes_moved": ("less", "the least", "more", "memory traffic"),
    "peak_bytes": ("less", "the least", "more", "memory"),
    "memory": ("less", "the least", "more", "memory"),
    "peak_entries": ("less", "the least", "more", "memory"),
    "parameters": ("fewer", "the fewest", "more", "parameters"),
    "state_bytes": ("less", "the least", "more", "decoding state"),
}
#: Kinds of crossovers, the ones nearest to what runs first.
KINDS = ("measured", "derived", "formula", "published")


def joined(texts: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def heads_text(number: int) -> str:
    """``1 head``, ``8 heads``."""
    return f"{number:,} head{'s' if number > 1 else ''}"


def _times(value: Number, base: Number) -> str:
    """How many times a base, to two digits: ``0.56×``."""
    ratio = value / base if base else 0.0
    return f"{ratio:,.{max(0, 1 - floor(log10(ratio))) if ratio else 0}f}×"


def compare_answer(records: Sequence[CompareRecord], quantities: Sequence[str]) -> str:
    """Of the longest length: two beside each other, or who of several is lowest.

    Against the standard mechanism where it takes part, else against the one named first.
    """
    rows = [row for row in records if not row.skipped and row.seq_len == records[-1].seq_len]
    named = [name for name in ("flops", "peak_bytes") if name in quantities] or quantities[:1]
    if len(rows) < 2 or any(getattr(row, name) is None for name in named for row in rows):
        return ""
    base = next((row for row in rows if row.mechanism == USUAL), rows[0])
    at, others = f"At {base.seq_len:,} tokens", [row for row in rows if row is not base]
    if len(others) == 1:
        parts = (
            f"{_times(getattr(others[0], name), getattr(base, name))} the {WORDS[name][3]}"
            for name in named
        )
        return f"{at} {others[0].mechanism} needs {joined(parts)} of {base.mechanism}."
    return f"{at} {joined(_lowest(name, rows, base) for name in named)}."


def _lowest(name: str, rows: Sequence[CompareRecord], base: CompareRecord) -> str:
    """Who needs least, and how that compares with the base."""
    _, least, _, what = WORDS[name]
    lowest = min(getattr(row, name) for row in rows)
    best = [row.mechanism for row in rows if getattr(row, name) == lowest]
    if len(best) == len(rows):
        return f"all need the same {what}"
    times = f" ({_times(lowest, getattr(base, name))} those of {base.mechanism})"
    need = "needs" if len(best) == 1 else "need"
    those = times if base.mechanism not in best else ""
    those = those if what.endswith("s") else those.replace("those", "that")
    return f"{joined(best)} {need} {least} {what}{those}"


def crossover_answer(records: Sequence[CrossoverRecord]) -> str:
    """From which length on who is cheaper, in each metric, for each group of head widths."""
    known = [row for row in records if not row.skipped]
    kind = next((kind for kind in KINDS if any(row.kind == kind for row in known)), "")
    said: dict[tuple[str, ...], list[CrossoverRecord]] = {}
    for _, group in groupby(
        (row for row in known if row.kind == kind), key=lambda row: row.head_dim
    ):
        rows = list(group)
        what = [t for row in rows for t in (row.metric, row.verdict, str(row.cheaper_above))]
        said.setdefault(tuple(what), []).extend(rows)
    return " ".join(_crossing(rows) for rows in said.values())


def _crossing(rows: Sequence[CrossoverRecord]) -> str:
    """Head widths of which the same is true."""
    widths = list(dict.fromkeys(row.head_dim or 0 for row in rows))
    span = f"{min(widths)} to {max(widths)}" if len(widths) > 2 else joined(map(str, widths))
    width = f"head width{'s' * (len(widths) > 1)} {span}"
    clauses, before = list[str](), ("", "")
    for metric, group in groupby(sorted(rows, key=lambda row: row.metric), lambda r: r.metric):
        some = list(group)
        one, (less, _, _, what) = some[0], WORDS[metric]
        above = one.cheaper_above
        other = one.mechanism_a if above == one.mechanism_b else one.mechanism_b
        where = _where(some)
        if above is None:
            clauses.append(f"both need the same {what} {where}")
        elif before == (above, other):
            clauses.append(f"{less} {what} {where}")
        else:
            clauses.append(f"{above} needs {less} {what} than {other} {where}")
        before = (above or "", other)
    return f"For {width}, {', and '.join(clauses)}."


def _where(rows: Sequence[CrossoverRecord]) -> str:
    """From which length on; of several head widths, the first and the last."""
    if rows[0].verdict in ("always", "never"):
        everywhere = all(row.searched[0] in ([1, None], [2, None]) for row in rows if row.searched)
        return "at every length" if everywhere else "at every length where both are known"
    several = " (the two change places more than once below)" * (rows[0].verdict == "several")
    if len(rows) == 1:
        return f"from {rows[0].first_seq_len:,} tokens on{several}"
    least, most = (pick(rows, key=lambda row: row.first_seq_len or 0) for pick in (min, max))
    return (
        f"from {least.first_seq_len:,} tokens (head width {least.head_dim}) to "
        f"{most.first_seq_len:,} (head width {most.head_dim}) on{several}"
    )


def heads_answer(optima: Sequence[Mapping[str, Any]], d_model: int, seq_len: int) -> str:
    """With how many heads each mechanism is cheapest, by its closed form where that was asked."""
    quantity = optima[0]["quantity"]
    kind = "formula" if any(one["kind"] == "formula" for one in optima) else "published"
    clauses, (_, least, _, what) = list[str](), WORDS[quantity]
    for one in optima:
        if (one["quantity"], one["kind"]) == (quantity, kind):
            best = one["best_divisor"]
            needs = f" needs {least} {what}" if not clauses else ""
            of = f"{heads_text(best)} of width {d_model // best:,}"
            clauses.append(f"{one['mechanism']}{needs} with {of}")
    return f"At {seq_len:,} tokens and d_model {d_model:,}, {joined(clauses)}."


def heatmap_answer(summary: Mapping[str, Any]) -> str:
    """How much more A needs than B on average, with the fewest heads and with the most."""
    means = {int(h): mean for h, mean in summary["mean_excess_percent"].items() if mean is not None}
    a, b, said = summary["mechanism_a"], summary["mechanism_b"], list[str]()
    if not means or a == b:
        return ""
    less, _, more, what = WORDS.get(summary["quantity"], ("less", "", "more", summary["quantity"]))
    for heads in dict.fromkeys((min(means), max(means))):
        share = means[heads]
        than, of = f" {what} than {b}" if not said else "", heads_text(heads)
        said.append(f"{abs(share):,.0f} % {more if share > 0 else less}{than} with {of}")
    return f"On average over all sizes, {a} needs {joined(said)}."


def growth_answer(faster: Sequence[str], unexpected: Sequence[str], asked: int) -> str:
    """How many mechanisms grow as claimed, and who does not."""
    if not faster:
        return f"All {asked} grow no faster with the length than they claim."
    why = f"{joined(unexpected)} without saying so" if unexpected else "for reasons told below"
    return (
        f"{asked - len(faster)} of {asked} grow no faster with the length than they claim; "
        f"{joined(faster)} {'grows' if len(faster) == 1 else 'grow'} faster, {why}."
    )
