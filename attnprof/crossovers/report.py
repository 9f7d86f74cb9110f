"""The report of ``crossover``: rows of all sources of a cost, the answer, and a figure's curves.

Published, formula and derived costs are solved; peaks of memory and times are searched. Each of
these finders returns a :class:`Finding`. :func:`crossover_report`, the entry point, turns findings
into rows, and :func:`crossover_answer` turns rows into plain sentences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Any, Protocol

from attnprof.crossovers import sides
from attnprof.crossovers.axis import SIZES, CrossoverAxis
from attnprof.crossovers.sides import Contest, Meeting, TimeTerms
from attnprof.crossovers.solve import solved
from attnprof.errors import AttnprofError, CannotRunError, RequestError, closest, together
from attnprof.mechanism import Mechanism
from attnprof.record import CrossoverRecord, Report
from attnprof.record.crossovers import everywhere
from attnprof.units import amount, joined, words_of

#: Sources of a cost, nearest to a running machine first.
BEST_KINDS_FIRST = ("measured", "predicted", "derived", "formula", "published")


def crossover_answer(records: Sequence[CrossoverRecord]) -> str:
    """Return who is cheaper from which length on, in each metric, by head widths.

    Over another axis than the length: from which value on, by lengths.
    """
    valid = [row for row in records if not row.skipped]
    best = {  # the kind nearest to what runs, by metric
        metric: min((row.kind for row in valid if row.metric == metric), key=BEST_KINDS_FIRST.index)
        for metric in {row.metric for row in valid}
    }
    shown = (row for row in valid if row.kind == best[row.metric])
    alike: dict[tuple[str, ...], list[CrossoverRecord]] = {}
    for _, group in groupby(shown, key=lambda row: row.fixed_size):
        rows = list(group)
        key = tuple(t for row in rows for t in (row.metric, row.verdict, str(row.cheaper_above)))
        alike.setdefault(key, []).extend(rows)
    sizes = sorted({row.fixed_size for row in records})
    sentences = [*(_sentence(rows, sizes) for rows in alike.values()), *_contradictions(valid)]
    noise = dict.fromkeys(row.noisy for row in valid if row.noisy)
    return " ".join([*sentences, *(f"This is not certain: {text}." for text in noise)])


def _contradictions(rows: Sequence[CrossoverRecord]) -> Iterator[str]:
    """Yield a sentence for each prediction that was measured to be otherwise."""
    timed = [row for row in rows if row.metric == "time"]
    measured = {row.fixed_size: row for row in timed if row.kind == "measured"}
    for row in timed:
        measurement = measured.get(row.fixed_size)
        if row.kind != "predicted" or measurement is None:
            continue
        if _contradicts(row, measurement):
            yield f"Predicted was {_result(row)}, measured {_result(measurement)}."


def _contradicts(predicted: CrossoverRecord, measured: CrossoverRecord) -> bool:
    """Return whether crossings differ, or who is faster, where both were looked for.

    Crossings whose intervals overlap are alike, and one whose interval ends beyond what was looked
    at may lie there.
    """
    rows = predicted, measured
    low = max((row.searched[0][0] or 0 for row in rows if row.searched), default=0)
    high = min((row.searched[-1][1] or inf for row in rows if row.searched), default=inf)
    inside, faster = list[list[float]](), list[str | None]()
    for row in rows:
        crossings = _crossings(row)
        inside.append([x for x in crossings if low <= x <= high])
        changes = sum(x < low for x in crossings) % 2
        faster.append(row.cheaper_above if changes else row.cheaper_below)
    if len(inside[0]) != len(inside[1]):
        ends = [end for row in rows for end in (row.ci_low, row.ci_high) if end is not None]
        return max(map(len, inside)) > 1 or all(low <= end <= high for end in ends)
    if None not in faster and faster[0] != faster[1]:
        return True
    at = measured.crossover_value
    if not inside[0] or at is None:
        return False
    below = (measured.ci_high or at) < (predicted.ci_low or 0)
    return below or (measured.ci_low or at) > (predicted.ci_high or inf)


def _crossings(row: CrossoverRecord) -> Sequence[float]:
    """Return the crossings of a row, ascending."""
    only = [] if row.crossover_value is None else [row.crossover_value]
    return row.all_crossings if row.verdict == "several" else only


def _result(row: CrossoverRecord) -> str:
    """Return a row's result in words: a crossing, or which side is always faster."""
    if row.verdict == "crosses" and row.crossover_value is not None:
        return f"a crossing at {amount(row.over, round(row.crossover_value))}"
    if row.verdict == "several":
        return "several crossings"
    return f"{row.cheaper_above} faster everywhere"


def _sentence(rows: Sequence[CrossoverRecord], all_sizes: Sequence[int]) -> str:
    """Return a sentence for the fixed sizes whose rows say the same."""
    sizes = sorted({row.fixed_size for row in rows})
    by_width = rows[0].over == "seq"
    texts = [f"{size}" if by_width else f"{size:,}" for size in sizes]
    between = [size for size in all_sizes if sizes[0] <= size <= sizes[-1]]
    is_range = len(sizes) > 2 and between == sizes
    span = f"{texts[0]} to {texts[-1]}" if is_range else joined(texts)
    if by_width:
        where = f"For head width{'s' * (len(sizes) > 1)} {span}"
    else:
        where = f"At {span} token{'s' * (sizes != [1])}"
    return f"{where}, {_clauses(rows)}."


def _clauses(rows: Sequence[CrossoverRecord]) -> str:
    """Return who needs less from where on, metric by metric."""
    clauses, before = list[str](), ("", "")
    for metric, group in groupby(sorted(rows, key=lambda row: row.metric), lambda r: r.metric):
        metric_rows = list(group)
        one = metric_rows[0]
        less, _, noun = words_of(metric, one.phase)
        above = one.cheaper_above
        other = one.mechanism_a if above == one.mechanism_b else one.mechanism_b
        where = f"{_from_where(metric_rows)}{_limits(metric_rows)}"
        if above is None:
            clauses.append(f"both need the same {noun} {where}")
        elif before == (above, other):
            clauses.append(f"{less} {noun} {where}")
        else:
            clauses.append(f"{above} needs {less} {noun} than {other} {where}")
        before = (above or "", other)
    return ", and ".join(clauses)


def _from_where(rows: Sequence[CrossoverRecord]) -> str:
    """Return the value from which on it holds; of several fixed sizes, the first and the last."""
    over = rows[0].over
    if rows[0].verdict in ("always", "never"):
        return everywhere(rows)
    several = " (below that they change places, too)" * (rows[0].verdict == "several")
    least, most = (pick(rows, key=lambda row: row.first_value or 0) for pick in (min, max))
    value_text = amount(over, least.first_value or 0)
    if least.first_value == most.first_value:
        same = least.method == "solved" and least.crossover_value == least.first_value
        return f"beyond {value_text}{several}" if same else f"from {value_text} on{several}"
    size_texts = list[str]()
    for end in (least, most):
        sizes = [row.fixed_size for row in rows if row.first_value == end.first_value]
        if over == "seq":
            size_texts.append(f"(head width{'s' * (len(sizes) > 1)} {joined(map(str, sizes))})")
        else:
            size_texts.append(f"(at {joined(f'{size:,}' for size in sizes)})")
    first, last = size_texts
    return f"from {value_text} {first} to {most.first_value:,} {last} on{several}"


def _limits(rows: Sequence[CrossoverRecord]) -> str:
    """Return the last value of derived formulas, and whether totals of code are lower bounds."""
    ends = {row.searched[-1][1] for row in rows if row.kind == "derived" and row.searched}
    last = ends.pop() if len(ends) == 1 else None
    end = f", up to {amount(rows[0].over, last)}" if last is not None else ""
    floor = any("at least" in (row.bound or "") for row in rows)
    return end + " (by totals that are at least these)" * floor


#: Fields of a row that are sizes.
SIZES_OF_ROWS = ("seq_len", "d_model", "head_dim", "num_heads", "batch_size")
VERDICTS = {0: "never", 1: "crosses"}


@dataclass(frozen=True)
class Finding:
    """All crossings at a fixed size, and the sign of A - B below the first and above the last.

    ``first`` is the first whole value from the last crossing on; without a crossing, the first
    value that the answer is for. ``fields`` are further ones of the row.
    """

    crossings: Sequence[float]
    outer: tuple[int, int]
    first: int
    fields: Mapping[str, Any]


class Finder(Protocol):
    """Finds crossings of some kinds and metrics."""

    @property
    def contests(self) -> Sequence[Contest]:
        """Return the pairs of costs that are compared, a row each."""

    def find(self, contest: Contest, fixed_size: int) -> Finding:
        """Return the crossings; raise a refusal that says why there is no answer."""

    def curves(self, records: Sequence[CrossoverRecord]) -> Iterable[dict[str, Any]]:
        """Return the costs as a figure takes them."""


@dataclass
class FormulaFinder:
    """Crossings of costs that are formulas: printed, our own, or derived from code."""

    meeting: Meeting
    contests: Sequence[Contest]

    def find(self, contest: Contest, fixed_size: int) -> Finding:
        """Return the crossings, by polynomials or by a search over integers."""
        solution, form = solved(self.meeting, contest, fixed_size)
        domain = contest.lengths(fixed_size, self.meeting.axis)
        doubts = {cost.doubt for cost in contest.at(fixed_size) if cost.doubt}
        searched, step = [list(stretch) for stretch in domain.stretches], domain.step
        if solution.looked_at:
            searched, step = [list(solution.looked_at)], 1
        every = self.meeting.axis.every
        crossings = [float(root.at * every) for root in solution.roots]
        first = (solution.start if solution.first is None else solution.first) * every
        if every > 1:
            form = form and _times(every, form)
            searched, step = [[x and x * every for x in one] for one in searched], every
        return Finding(crossings, (solution.runs[0].sign, solution.runs[-1].sign), first, {
            "closed_form": form, "method": "solved" if solution.runs[-1].piece else "searched",
            "searched": searched, "searched_step": step,
            "bound": "; ".join(sorted(doubts)) or None,
        })  # fmt: skip

    def curves(self, records: Sequence[CrossoverRecord]) -> Iterable[dict[str, Any]]:
        """Return both costs around the crossings, at all lengths."""
        meeting = replace(self.meeting, axis=replace(self.meeting.axis, every=1))
        return sides.curves_of(meeting, self.contests, records)


def _times(number: int, form: str) -> str:
    """Return the text of a formula times a number."""
    from attnprof.algebra.expressions import expression_of, expression_text
    from attnprof.algebra.parser import parse

    return expression_text(number * expression_of(parse(form, stored=True)))


def crossover_report(
    meeting: Meeting, fixed_sizes: Sequence[int], kinds: Sequence[str] = sides.KINDS,
    metrics: Sequence[str] = sides.METRICS, *, terms: TimeTerms | None = None,
    with_curves: bool = False, environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """Return the report, with a figure's curves if wanted; raise if every row is refused.

    ``fixed_sizes`` are head widths, or lengths over another axis than the length. ``terms`` are
    those of times.
    """
    meeting.check_steps()
    _check_request(meeting.axis, kinds, metrics, terms.on if terms else None)
    rows: list[Any] = []
    curves: list[dict[str, Any]] = []
    summary: dict[str, Any] = {"mechanism_a": meeting.a.name, "mechanism_b": meeting.b.name}
    made_of, is_sorted = dict[str, str](), False
    for finder in _finders(meeting, kinds, metrics, terms):
        refused = list[AttnprofError]()
        added = [
            _row(meeting, finder, one, d, refused) for d in fixed_sizes for one in finder.contests
        ]
        if not rows and all(row.skipped for row in added):
            raise together(refused)
        rows += added
        curves += finder.curves(added) if with_curves else ()
        if not isinstance(finder, FormulaFinder):
            is_sorted = True
            environment = {**environment, **getattr(finder, "environment", {})}
            made_of = getattr(finder, "made_of", made_of)
    if is_sorted:  # the kinds of one metric next to each other
        metric, kind = sides.ALL_METRICS.index, sides.ALL_KINDS.index
        rows.sort(key=lambda row: (row.fixed_size, metric(row.metric), kind(row.kind)))
    summary |= {"answer": crossover_answer(rows), **made_of}
    if with_curves:
        summary |= {"curves": curves, "ratios": sides.ratios(curves)}
    return Report("crossover", rows, summary, environment)


def _finders(
    meeting: Meeting, kinds: Sequence[str], metrics: Sequence[str], terms: TimeTerms | None
) -> Iterator[Finder]:
    """Yield finders for the rows asked for."""
    counted = [metric for metric in metrics if metric != sides.TIME]
    others = [kind for kind in kinds if kind != sides.PREDICTED or sides.TIME not in metrics]
    closed = [kind for kind in others if kind != sides.MEASURED]
    if counted and others:
        if closed:
            yield FormulaFinder(meeting, sides.contests(meeting, closed, counted))
        if sides.MEASURED in others and "memory" in counted:
            from attnprof.crossovers.peaks import PeakFinder

            yield PeakFinder(meeting)
    if sides.TIME in metrics:
        from attnprof.crossovers.timed import TimeFinder

        timed = [kind for kind in (sides.PREDICTED, sides.MEASURED) if kind in kinds]
        yield TimeFinder(meeting, terms or TimeTerms(), timed)


def _check_request(
    axis: CrossoverAxis, kinds: Sequence[str], metrics: Sequence[str], on: str | None
) -> None:  # fmt: skip
    """Raise :class:`RequestError` for kinds that do not go with these metrics or with the axis.

    So nothing that is asked for is left out without a word, except what no document prints.
    ``on``: a device that is not here.
    """
    for unknown in (kind for kind in kinds if kind not in sides.ALL_KINDS):
        raise RequestError(f"unknown kind '{unknown}': {closest(unknown, [*sides.ALL_KINDS])}")
    running = [kind for kind in kinds if kind in (sides.PREDICTED, sides.MEASURED)]
    if axis.every != 1 and running:
        raise RequestError(
            f"--every {axis.every} is of closed forms, not of what is {running[0]}: leave it out, "
            "or type --kind formula"
        )
    if sides.DERIVED in kinds and axis.name != "seq":
        raise RequestError(
            f"--kind derived goes over the length: leave --over {axis.name} out, or ask for other "
            "kinds"
        )
    if on and sides.MEASURED in kinds:
        raise RequestError(f"--on {on}: only what is here is measured; type --kind predicted")
    kinds_of = {m: [k for k, of in sides.METRICS_OF.items() if m in of] for m in metrics}
    for kind in kinds:
        possible = sides.METRICS_OF[kind]
        if kind != "published" and not {*metrics} & {*possible}:
            raise RequestError(
                f"--kind {kind} --metric {','.join(metrics)}: {kind} costs are of "
                f"{joined(possible)}: type --metric {possible[0]}, or --kind "
                f"{','.join(kinds_of[metrics[0]])}"
            )
    for metric, able in kinds_of.items():
        if not {*kinds} & {*able}:
            raise RequestError(
                f"--kind {','.join(kinds)} --metric {metric}: its kinds are {joined(able)}: type "
                f"--kind {','.join([*kinds, able[0]])}"
            )


# -- rows ------------------------------------------------------------------------------
def _row(
    meeting: Meeting,
    finder: Finder,
    contest: Contest,
    fixed_size: int,
    refused: list[AttnprofError],
) -> CrossoverRecord:
    """Return one row; of a refusal a row with the reason, which is also added to ``refused``."""
    empty = _blank(meeting, contest, fixed_size)
    try:
        finding = finder.find(contest, fixed_size)
    except (RequestError, CannotRunError) as refusal:
        refused.append(refusal)
        return replace(empty, skipped=str(refusal))
    last = finding.crossings[-1] if finding.crossings else None
    names, (below, above) = {1: meeting.b.name, -1: meeting.a.name, 0: None}, finding.outer
    always = last is None and below > 0
    first = finding.first if always or last is not None else None
    over_lengths = empty.over == "seq"
    verdict = "always" if always else VERDICTS.get(len(finding.crossings), "several")
    return replace(
        empty, crossover_value=last, first_value=first, all_crossings=list(finding.crossings),
        crossover_seq_len=last if over_lengths else None, verdict=verdict,
        first_seq_len=first if over_lengths else None, cheaper_below=names[below],
        cheaper_above=names[above], **finding.fields,
    )  # fmt: skip


def _blank(meeting: Meeting, contest: Contest, fixed_size: int) -> CrossoverRecord:
    """Return a row with the request alone, and no answer."""
    w, axis = meeting.workload, meeting.axis
    sizes = {name: getattr(w, name) for name in ("head_dim", "num_heads", "batch_size")}
    sizes |= {"seq_len": None, axis.fixed_name: fixed_size, SIZES.get(axis.name, ""): None}
    if axis.d_model is not None:
        sizes |= {"head_dim": None, "d_model": axis.d_model}
    sizes = {name: size for name, size in sizes.items() if name in SIZES_OF_ROWS}

    def params(side: Any) -> dict[str, Any]:
        of_side = side.params if isinstance(side, Mechanism) else {}
        return {name: value for name, value in of_side.items() if name != axis.name}

    return CrossoverRecord(
        metric=contest.metric, unit=contest.unit, kind=contest.kind, source=contest.source,
        mechanism_a=meeting.a.name, mechanism_b=meeting.b.name, params_a=params(meeting.a),
        params_b=params(meeting.b), over=axis.name,
        dtype=None if contest.kind == "published" else w.dtype,
        method=contest.kind if contest.kind in (sides.PREDICTED, sides.MEASURED) else None,
        scope=meeting.scope, phase=w.phase, causal=w.causal, verdict="", **sizes,
    )  # fmt: skip
