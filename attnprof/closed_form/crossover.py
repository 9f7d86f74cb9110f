"""Where two mechanisms cost the same: the records of ``crossover``."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import Any

from attnprof.algebra.polynomials import NotPiecewisePolynomialError
from attnprof.algebra.roots import closed_form, positive_roots
from attnprof.closed_form.answers import crossover_answer
from attnprof.closed_form.crossings import SAME, Crossings, bisected, crossings_of, pieces, ratios
from attnprof.closed_form.lengths import EVERY, CostOf, KnownCost, Lengths
from attnprof.closed_form.quantities import comparable, quantity_of, speaking
from attnprof.costs import Number
from attnprof.errors import AttnprofError, CannotRunError, RequestError, closest, together
from attnprof.mechanism import Mechanism
from attnprof.record import CrossoverRecord, Report
from attnprof.workload import Workload

KINDS = ("published", "formula")
#: Costs counted in running code, and what a machine should show and shows: where asked for only.
DERIVED, PREDICTED, MEASURED = "derived", "predicted", "measured"
ALL_KINDS = (*KINDS, DERIVED, PREDICTED, MEASURED)
METRICS = ("flops", "memory")
#: What no formula gives.
TIME = "time"
ALL_METRICS = (*METRICS, TIME)


@dataclass(frozen=True)
class OwnModule:
    """A module of somebody's own: no closed form of ours, no document prints it."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Meeting:
    """Two mechanisms and what is asked of them; ``workload`` carries all sizes but two.

    Either side may be an :class:`OwnModule` instead: something that only has a name and derived
    costs, which ``derived`` gives for a metric and a head width.
    """

    a: Mechanism | OwnModule
    b: Mechanism | OwnModule
    workload: Workload
    scope: str = "core"
    derived: Callable[[str, int], tuple[KnownCost, KnownCost]] | None = None

    def __post_init__(self) -> None:
        for side in (self.a, self.b):
            if not isinstance(side, OwnModule):
                side.check(self.workload, self.scope)


#: What a metric is as a quantity of printed formulas and of code that runs, and its unit there.
PRINTED_AS = {"flops": ("flops", "flops"), "memory": ("peak_entries", "entries")}
COUNTED_AS = {
    "flops": ("flops", "flops"), "memory": ("peak_bytes", "bytes"), TIME: ("time_s", "s"),
}  # fmt: skip


@dataclass(frozen=True)
class Contest:
    """One metric of one kind: the two costs that meet, and where they are printed.

    ``known`` gives costs that hold at some lengths only, by head width, in place of ``costs``.
    """

    metric: str
    kind: str
    costs: tuple[CostOf, ...] = ()
    source: str | None = None
    known: Callable[[int], tuple[KnownCost, KnownCost]] | None = None

    @property
    def unit(self) -> str:
        """Unit of the metric in this kind."""
        return (PRINTED_AS if self.kind == "published" else COUNTED_AS)[self.metric][1]

    def at(self, head_dim: int) -> Sequence[KnownCost]:
        """Both costs at a head width."""
        if self.known is None:
            return [KnownCost(cost, EVERY.holds) for cost in self.costs]
        return self.known(head_dim)

    def lengths(self, head_dim: int) -> Lengths:
        """Lengths at which both are known; RequestError where there are none."""
        if self.known is None:
            return EVERY
        first, second = self.at(head_dim)
        found = Lengths(lambda length: first.holds(length) and second.holds(length))
        if not found.stretches:
            raise RequestError(
                f"at head width {head_dim} there is no length at which both costs are known: "
                f"{first.said}; {second.said}"
            )
        return found


def contests(
    meeting: Meeting, kinds: Sequence[str] = KINDS, metrics: Sequence[str] = METRICS
) -> list[Contest]:
    """What can be compared, published first.

    Raises :class:`RequestError` where nothing can: no document prints both on the same terms.
    """
    for asked, possible in ((kinds, (*KINDS, DERIVED)), (metrics, METRICS)):
        wrong = [name for name in asked if name not in possible]
        if wrong:
            raise RequestError(f"'{wrong[0]}': {closest(wrong[0], list(possible))}")
    found = []
    a, b, w, scope = meeting.a, meeting.b, meeting.workload, meeting.scope
    for metric in metrics:
        if not isinstance(a, OwnModule) and not isinstance(b, OwnModule):
            pairs = speaking(
                comparable(a, b), PRINTED_AS[metric][0], w.phase, w.causal, scope, (w.num_heads,)
            )
            if "published" in kinds and pairs:  # for one head, the one-head form comes first
                x, y = min(pairs, key=lambda pair: pair[0].heads != "one")
                source = ", ".join(dict.fromkeys((x.source, y.source)))
                found.append(Contest(metric, "published", (x.formula, y.formula), source))
            if "formula" in kinds:
                count = partial(quantity_of, scope=scope, quantity=COUNTED_AS[metric][0])
                found.append(Contest(metric, "formula", (partial(count, a), partial(count, b))))
        if DERIVED in kinds and meeting.derived is not None:
            found.append(Contest(metric, DERIVED, known=partial(meeting.derived, metric)))
    if found:
        return found
    if isinstance(a, OwnModule) or isinstance(b, OwnModule):
        raise RequestError(
            f"{a.name} and {b.name} can be compared by what they execute only: use --kind derived"
        )
    raise RequestError(
        f"no document prints {' or '.join(metrics)} of both {a.name} and {b.name} on the same "
        f"terms for scope {scope}, phase {w.phase}{', causal' if w.causal else ''}, "
        f"{w.num_heads} head(s); use --kind formula"
    )


def blank(
    meeting: Meeting, contest: Contest, head_dim: int, skipped: str | None = None
) -> CrossoverRecord:
    """A row that says what was asked and, maybe, why there is no answer."""
    w = meeting.workload
    return CrossoverRecord(
        metric=contest.metric, unit=contest.unit, kind=contest.kind, source=contest.source,
        mechanism_a=meeting.a.name, mechanism_b=meeting.b.name, params_a=dict(meeting.a.params),
        params_b=dict(meeting.b.params), head_dim=head_dim, num_heads=w.num_heads,
        batch_size=w.batch_size, dtype=None if contest.kind == "published" else w.dtype,
        scope=meeting.scope, phase=w.phase, causal=w.causal, verdict="", skipped=skipped,
    )  # fmt: skip


def _record(
    meeting: Meeting, contest: Contest, head_dim: int, refused: list[AttnprofError]
) -> CrossoverRecord:
    """One row; a refusal is one that says why, and is kept in ``refused``."""
    try:
        found, form = solved(meeting, contest, head_dim)
        known = contest.lengths(head_dim)
        doubts = {cost.doubt for cost in contest.at(head_dim) if cost.doubt}
    except (RequestError, CannotRunError) as refusal:
        refused.append(refusal)
        return blank(meeting, contest, head_dim, str(refusal))
    names = {1: meeting.b.name, -1: meeting.a.name, 0: None}
    return replace(
        blank(meeting, contest, head_dim), closed_form=form, verdict=found.verdict,
        crossover_seq_len=float(found.roots[-1].at) if found.roots else None,
        first_seq_len=found.first_seq_len, method="solved" if found.runs[-1].piece else "searched",
        cheaper_below=names[found.runs[0].sign], cheaper_above=names[found.runs[-1].sign],
        all_crossings=[float(root.at) for root in found.roots],
        searched=[list(stretch) for stretch in known.stretches], searched_step=known.step,
        bound="; ".join(sorted(doubts)) or None,
    )  # fmt: skip


def solved(meeting: Meeting, contest: Contest, head_dim: int) -> tuple[Crossings, str | None]:
    """All crossings at one head width and the last one's closed form in ``d``, if it has one.

    By polynomials where the costs are any; by integer bisection where they are not. Only lengths
    at which both costs are known count.
    """
    first, second = contest.at(head_dim)
    known = contest.lengths(head_dim)

    def difference(n: Number, d: Number) -> Number:
        if not isinstance(d, int) and not (first.general and second.general):
            raise NotPiecewisePolynomialError("costs of one head width")
        workload = meeting.workload.with_(seq_len=n, head_dim=d)
        return first.of(workload) - second.of(workload)

    @cache
    def at(length: int) -> Number:
        value = difference(length, head_dim)
        return int(value) if value == int(value) else value

    def integers(n: Number, d: Number) -> Number:
        return at(n) if isinstance(n, int) else difference(n, d)

    if len(known.stretches) > 1:
        return bisected(at, known), None
    try:
        found = crossings_of(pieces(integers, head_dim, known.stretches[0][0]), at, known)
    except NotPiecewisePolynomialError:
        return bisected(at, known), None
    last = found.runs[-1]
    return found, _closed(found, head_dim) if found.roots and last.piece else None


def _closed(found: Crossings, head_dim: int) -> str | None:
    """The closed form from a side of the last crossing whose polynomial vanishes there, if any."""
    root = found.roots[-1]
    for run in reversed(found.runs[-2:]):
        if run.piece and run.piece.general:
            roots = positive_roots(run.piece.coefficients)
            vanishes = any(abs(own.at - root.at) <= SAME for own in roots)
            if vanishes and (form := closed_form(run.piece.terms, head_dim, root)):
                return form
    return None


def report(
    meeting: Meeting, head_dims: Sequence[int], kinds: Sequence[str] = KINDS,
    metrics: Sequence[str] = METRICS, *, with_curves: bool = False, environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """The report, a figure's curves in its summary if wanted; RequestError for rows all refused."""
    matches = contests(meeting, kinds, metrics)
    refused: list[AttnprofError] = []
    records = [_record(meeting, contest, d, refused) for d in head_dims for contest in matches]
    if all(record.skipped for record in records):
        raise together(refused)
    names = {"mechanism_a": meeting.a.name, "mechanism_b": meeting.b.name}
    summary: dict[str, Any] = {**names, "answer": crossover_answer(records)}
    if with_curves:
        summary["curves"] = _curves(meeting, matches, records)
        summary["ratios"] = ratios(summary["curves"])
    return Report("crossover", records, summary, environment)


# -- figures ---------------------------------------------------------------------------
#: Points of a curve, and how far around the crossovers it goes.
POINTS = 64
AROUND = 8
WITHOUT_CROSSOVER = 1024


def _curves(
    meeting: Meeting, matches: Sequence[Contest], records: Sequence[CrossoverRecord]
) -> list[dict[str, Any]]:
    """Both costs of each contest at each head width, at lengths where both are known."""
    found: list[dict[str, Any]] = []
    widths = dict.fromkeys(r.head_dim for r in records if r.head_dim is not None)
    for contest, head_dim in product(matches, widths):
        marks = [x for r in records if r.head_dim == head_dim for x in r.all_crossings if x >= 1]
        try:
            costs, known = contest.at(head_dim), contest.lengths(head_dim)
        except (RequestError, CannotRunError):
            continue  # a row says why
        lengths = _lengths(marks, known)
        for mechanism, cost in zip((meeting.a, meeting.b), costs, strict=True):
            points: dict[int, Number] = {}
            for n in lengths:
                with suppress(RequestError):  # a length that the mechanism refuses
                    points[n] = cost.of(meeting.workload.with_(seq_len=n, head_dim=head_dim))
            curve = {
                "metric": contest.metric, "unit": contest.unit, "kind": contest.kind,
                "mechanism": mechanism.name, "head_dim": head_dim, "seq_len": list(points),
                "value": list(points.values()),
            }  # fmt: skip
            found += [curve] if points else []
    return found


def _lengths(marks: Sequence[float], known: Lengths) -> list[int]:
    """Known lengths around the crossovers; without one, around a usual length or all there are."""
    first, last = known.stretches[0][0], known.stretches[-1][1]
    marks = marks or [WITHOUT_CROSSOVER]
    low, high = max(1.0, min(marks) / AROUND), max(marks) * AROUND
    low, high = max(low, float(first)), high if last is None else min(high, float(last))
    if low > high:  # what is known lies elsewhere
        low, high = float(first), float(last or first * AROUND**2)
    steps = ((high / low) ** (i / (POINTS - 1)) for i in range(POINTS))
    found = {known.after(round(low * step)) for step in steps}
    return sorted(length for length in found if length is not None)
