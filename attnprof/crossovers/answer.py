"""The answer of ``crossover`` in plain sentences, made from its records."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from attnprof.closed_form.answers import words_of
from attnprof.record import CrossoverRecord
from attnprof.record.crossovers import everywhere
from attnprof.units import amount, joined

#: Sources of a cost, nearest to a running machine first.
KINDS = ("measured", "predicted", "derived", "formula", "published")


def crossover_answer(records: Sequence[CrossoverRecord]) -> str:
    """Return who is cheaper from which length on, in each metric, by head widths.

    Over another axis than the length: from which value on, by lengths.
    """
    known = [row for row in records if not row.skipped]
    best = {  # the kind nearest to what runs, by metric
        metric: min((row.kind for row in known if row.metric == metric), key=KINDS.index)
        for metric in {row.metric for row in known}
    }
    asked = sorted({row.given for row in records})
    alike: dict[tuple[str, ...], list[CrossoverRecord]] = {}
    for _, group in groupby(
        (row for row in known if row.kind == best[row.metric]), key=lambda row: row.given
    ):
        rows = list(group)
        what = [t for row in rows for t in (row.metric, row.verdict, str(row.cheaper_above))]
        alike.setdefault(tuple(what), []).extend(rows)
    return " ".join([*(_sentence(rows, asked) for rows in alike.values()), *_contradictions(known)])


def _contradictions(rows: Sequence[CrossoverRecord]) -> Iterator[str]:
    """Yield a sentence for each prediction that was measured to be otherwise."""
    timed = [row for row in rows if row.metric == "time"]
    measured = {row.given: row for row in timed if row.kind == "measured"}
    for row in timed:
        measurement = measured.get(row.given)
        if row.kind != "predicted" or measurement is None:
            continue
        low, high, at = row.ci_low, row.ci_high, measurement.crossover_value
        beyond = at is not None and not (low or at) <= at <= (high or at)
        if row.verdict != measurement.verdict or beyond:
            yield f"Predicted was {_result(row)}, measured {_result(measurement)}."


def _result(row: CrossoverRecord) -> str:
    """Return what a row says: a crossing, or that one side is always faster."""
    if row.verdict == "crosses" and row.crossover_value is not None:
        return f"a crossing at {amount(row.over, round(row.crossover_value))}"
    if row.verdict == "several":
        return "several crossings"
    return f"{row.cheaper_above} faster everywhere"


def _sentence(rows: Sequence[CrossoverRecord], asked: Sequence[int]) -> str:
    """Return a sentence for the given sizes whose rows say the same."""
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
    """Return who needs less from where on, metric by metric."""
    clauses, before = list[str](), ("", "")
    for metric, group in groupby(sorted(rows, key=lambda row: row.metric), lambda r: r.metric):
        some = list(group)
        one, (less, _, what) = some[0], words_of(metric)
        above = one.cheaper_above
        other = one.mechanism_a if above == one.mechanism_b else one.mechanism_b
        where = f"{_from_where(some)}{_limits(some)}"
        if above is None:
            clauses.append(f"both need the same {what} {where}")
        elif before == (above, other):
            clauses.append(f"{less} {what} {where}")
        else:
            clauses.append(f"{above} needs {less} {what} than {other} {where}")
        before = (above or "", other)
    return ", and ".join(clauses)


def _from_where(rows: Sequence[CrossoverRecord]) -> str:
    """Return from which value on; of several given sizes for the first and the last."""
    over = rows[0].over
    if rows[0].verdict in ("always", "never"):
        return everywhere(rows)
    several = " (below that they change places, too)" * (rows[0].verdict == "several")
    least, most = (pick(rows, key=lambda row: row.first_value or 0) for pick in (min, max))
    value_text = amount(over, least.first_value or 0)
    if least.first_value == most.first_value:
        same = least.method == "solved" and least.crossover_value == least.first_value
        return f"beyond {value_text}{several}" if same else f"from {value_text} on{several}"
    of = list[str]()
    for end in (least, most):
        sizes = [row.given for row in rows if row.first_value == end.first_value]
        if over == "seq":
            of.append(f"(head width{'s' * (len(sizes) > 1)} {joined(map(str, sizes))})")
        else:
            of.append(f"(at {joined(f'{size:,}' for size in sizes)})")
    return f"from {value_text} {of[0]} to {most.first_value:,} {of[1]} on{several}"


def _limits(rows: Sequence[CrossoverRecord]) -> str:
    """Return where derived formulas end, and that totals of code leave something out."""
    ends = {row.searched[-1][1] for row in rows if row.kind == "derived" and row.searched}
    last = ends.pop() if len(ends) == 1 else None
    end = f", up to {amount(rows[0].over, last)}" if last is not None else ""
    floor = any("at least" in (row.bound or "") for row in rows)
    return end + " (by totals that are at least these)" * floor
