"""Cost over the number of heads at a fixed model width, and the number with the least cost.

The minimum over real numbers of heads is a root of the derivative. Whole numbers that divide the
width are evaluated one by one. Entry points: :func:`curves_of` and :func:`heads_report`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

from attnprof.algebra import polynomials
from attnprof.algebra.polynomials import divisors, text, value_of
from attnprof.algebra.roots import Root, positive_roots, value_at
from attnprof.closed_form.quantities import quantity_of
from attnprof.costs import Number
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.record import HeadsRecord, Report
from attnprof.units import joined, plural, words_of
from attnprof.workload import Workload

KINDS = ("published", "formula")
QUANTITIES = ("flops", "peak_entries")


@dataclass(frozen=True)
class Curve:
    """One cost as a function of the number of heads and their width, at a fixed length."""

    mechanism: str
    kind: str
    quantity: str
    source: str | None
    workload: Workload
    count: Callable[[Workload], Number]

    def cost(self, h: Number, d: Number) -> Number:
        """Return the cost of h heads of width d."""
        return self.count(self.workload.with_(num_heads=h, head_dim=d))


@dataclass(frozen=True)
class Optimum:
    """The head width d of least cost, as if the number of heads could be a fraction.

    ``equation`` has the coefficients in d of the derivative's numerator, lowest power first;
    ``root`` is the root with the least cost, None if there is none; ``general`` is true if the cost
    is one polynomial, without branches by size.
    """

    equation: tuple[int, ...]
    root: Root | None
    general: bool


def curves_of(
    mechanisms: Sequence[Mechanism], workload: Workload, scope: str, kinds: Sequence[str],
    quantities: Sequence[str],
) -> list[Curve]:  # fmt: skip
    """Return every cost that can be drawn, a mechanism's printed ones before ours.

    Raises :class:`RequestError` if a mechanism refuses the workload, or if there is no curve.
    """
    curves = []
    for mechanism in mechanisms:
        mechanism.check(workload, scope)
        for quantity in quantities:
            terms = (scope, workload.phase, workload.causal, quantity, "any")
            printed = [
                Curve(mechanism.name, "published", quantity, form.source, workload, form.formula)
                for form in mechanism.published()
                if (form.scope, form.phase, form.causal, form.quantity, form.heads) == terms
            ]
            if "published" in kinds:
                curves += printed[:1]
            if "formula" in kinds:
                count = partial(quantity_of, mechanism, scope=scope, quantity=quantity)
                curves.append(Curve(mechanism.name, "formula", quantity, None, workload, count))
    if not curves:
        names = ", ".join(mechanism.name for mechanism in mechanisms)
        raise RequestError(
            f"no document prints {' or '.join(quantities)} against the number of heads for "
            f"{names} (scope {scope}, phase {workload.phase}); use --kind formula"
        )
    return curves


def optimum(curve: Curve, d_model: int, num_heads: int) -> Optimum:
    """Return the minimum over real head widths, by setting the derivative to zero.

    A term h^i·d^j at h = d_model/d is d_model^i·d^(j-i). Branches by size are taken as at
    ``num_heads``; a root where the cost takes another branch is no minimum of it. No equation if
    the cost is no polynomial in heads and width.
    """
    sample = num_heads, d_model // num_heads
    branches = polynomials.Branches(sample)
    try:
        terms = polynomials.terms_of(lambda: curve.cost(branches.size(0), branches.size(1)))
    except polynomials.NotPiecewisePolynomialError:
        return Optimum((), None, general=False)
    slopes: defaultdict[int, Fraction] = defaultdict(Fraction)
    for (i, j), factor in terms.items():
        slopes[j - i - 1] += Fraction(factor) * (j - i) * d_model**i
    powers = [power for power, slope in slopes.items() if slope]
    span = range(min(powers), max(powers) + 1) if powers else ()
    whole = polynomials.in_integers([slopes[power] for power in span])
    equation = tuple(value // math.gcd(*whole) for value in whole)
    turns = [root for root in positive_roots(equation) if root.crosses]
    # the cost falls before every other turn: the last one, if it rises from there on
    lowest = turns[::-2] if equation and equation[-1] > 0 else turns[-2::-2]
    root = lowest[0] if lowest else None
    if root is not None:
        sizes = d_model / root.at, root.at
        signs = (value_of(one, *sample) * value_of(one, *sizes) for one in branches.decided)
        root = None if any(sign < 0 for sign in signs) else root
    return Optimum(equation, root, not branches.decided)


def trend(optimum: Optimum, d_model: int, values: Sequence[int]) -> str:
    """Return how a cost goes with the head count: ``falls for every h up to 512``.

    It is derived for every h if the cost is one polynomial, else compared at the divisors.
    """
    if optimum.general and optimum.equation:
        inside = [r for r in positive_roots(optimum.equation) if r.crosses and 1 < r.at < d_model]
        slope = value_at(optimum.equation, Fraction(1 + d_model, 2))
        if not inside and slope:
            return f"{'falls' if slope > 0 else 'rises'} for every h up to {d_model}"
    steps = {(b > a) - (b < a) for a, b in pairwise(values)}
    words = {-1: "falls", 1: "rises", 0: "is constant"}
    if len(steps) != 1:
        return "neither falls nor rises throughout" if steps else "one number tells nothing"
    over = "all divisors" if len(values) == len(divisors(d_model)) else "these"
    return f"{words[steps.pop()]} over {over}"


def root_text(optimum: Optimum) -> str | None:
    """Return the optimum in radicals, if its equation has at most degree three; else None.

    Roots that need complex numbers on the way are left out.
    """
    from sympy import I, Poly, Symbol, roots

    if optimum.root is None or not 1 < len(optimum.equation) <= 4:
        return None
    for form in roots(Poly(list(reversed(optimum.equation)), Symbol("d"))):
        if not form.has(I) and abs(float(form) - float(optimum.root.at)) < 1e-9 * optimum.root.at:
            return str(form)
    return None


def heads_report(
    curves: Sequence[Curve], d_model: int, seq_len: int, head_counts: Sequence[int],
    environment: Mapping[str, Any], conditions: str = "",
) -> Report:  # fmt: skip
    """Return the report of ``heads``: every cost by head count, and each cost's optimum.

    ``conditions`` are those of the summary, for titles. The summary's optimum is that of the last
    mechanism's FLOPs, by its printed form if it has one. Head counts that a mechanism refuses have
    no value, and stand in ``left_out`` with the reason; :class:`RequestError` if it refuses all.
    """
    records, optima, left_out = [], [], dict[str, None]()
    for curve in curves:
        values, refusals = _values(curve, d_model, head_counts)
        records += [
            HeadsRecord(
                mechanism=curve.mechanism, num_heads=h, head_dim=d_model // h,
                quantity=curve.quantity, kind=curve.kind, source=curve.source, value=values.get(h),
            )
            for h in head_counts
        ]  # fmt: skip
        left_out |= dict.fromkeys(f"{curve.mechanism}: {refusal}" for refusal in refusals)
        optima.append(_optimum_summary(curve, d_model, values))
    last = [o for o in optima if o["mechanism"] == curves[-1].mechanism]
    main = min(last, key=lambda o: (o["quantity"] != "flops", o["kind"] != "published"))
    keys = ("optimum_head_dim", "optimum_num_heads", "best_divisor", "closed_form", "equation")
    summary = {"d_model": d_model, "seq_len": seq_len, "conditions": conditions}
    summary |= {key: main[key] for key in keys}
    every = len(head_counts) == len(divisors(d_model))
    answer = heads_answer(optima, d_model, seq_len, every=every) if head_counts[1:] else ""
    summary |= {"optima": optima, "left_out": list(left_out), "answer": answer}
    return Report("heads", records, summary, environment)


def _values(
    curve: Curve, d_model: int, head_counts: Sequence[int]
) -> tuple[dict[int, int], list[RequestError]]:
    """Return a cost by head count, and refusals; the first is raised if there is nothing else."""
    values, refusals = dict[int, int](), []
    for h in head_counts:
        try:
            values[h] = int(curve.cost(h, d_model // h))
        except RequestError as refusal:
            refusals.append(refusal)
    if not values:
        raise refusals[0]
    return values, refusals


def _optimum_summary(curve: Curve, d_model: int, values: Mapping[int, int]) -> dict[str, Any]:
    """Return a cost's optimum as JSON fields; ``values`` are the costs by head count."""
    best = min(values, key=lambda h: (values[h], h))
    lowest = optimum(curve, d_model, best)
    return {
        "mechanism": curve.mechanism, "kind": curve.kind, "quantity": curve.quantity,
        "source": curve.source,
        "optimum_head_dim": float(lowest.root.at) if lowest.root else None,
        "optimum_num_heads": float(d_model / lowest.root.at) if lowest.root else None,
        "best_divisor": best,
        "best_divisors": [h for h in values if values[h] == values[best]],  # where several are
        "closed_form": root_text(lowest),
        "equation": f"{text(lowest.equation)} = 0" if lowest.equation else None,
        "trend": trend(lowest, d_model, list(values.values())),
    }  # fmt: skip


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
