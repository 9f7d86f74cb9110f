"""004, Figures 1 and 2: time and memory over length, of one head and of an encoder; all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from typing import Any

from attnprof.papers.agreement import rounded, within
from attnprof.papers.measured import measured
from attnprof.papers.regenerated import Described, Figure, FigureData
from attnprof.papers.taylorshift.checks_measured import SHARES
from attnprof.papers.taylorshift.crossings import DIRECT, EFFICIENT
from attnprof.papers.taylorshift.figure_sizes import errors, norms
from attnprof.papers.taylorshift.formulas import WIDTHS
from attnprof.papers.taylorshift.measurements import STANDARD
from attnprof.papers.taylorshift.results import quoted

#: "About", "competitive" and a slope, as far as a figure shows them.
ABOUT, COMPETITIVE, EXPONENT = 0.1, 0.25, 0.2

Rows = Sequence[Mapping[str, Any]]


def heads() -> FigureData:
    """Figure 1: one head; columns by d, time above memory."""
    found = measured("004", "crossovers")
    rows = [dict(row) for row in found["curves"]]
    return FigureData(rows, tuple(_said_of_heads(found)), {"marks": list(_marks(found))})


def _marks(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The four crossovers of each column: which panel, where, and how high the curves are."""
    for place, d in enumerate(found["d"]):
        direct = [r for r in found["curves"] if r["d"] == d and r["form"] == DIRECT]
        for name, field in (("N0", "time_s"), ("N0hat", "time_s"), ("N1", "peak_bytes"),
                            ("N1hat", "peak_bytes")):  # fmt: skip
            length = found[name][place]
            yield {"d": d, "name": name, "field": field, "seq_len": length,
                   "value": height(direct, field, length),
                   "extrapolated": name == "N0hat" and found["extrapolated"][place]}  # fmt: skip


def height(rows: Rows, field: str, length: float) -> float | None:
    """A curve's value at a length, on straight lines in the logarithms; None outside."""
    known = sorted((r["seq_len"], r[field]) for r in rows if r[field] is not None)
    for (a, x), (b, y) in pairwise(known):
        if a < b and a <= length <= b:
            share = log(length / a) / log(b / a)
            return float(x * exp(share * log(y / x)))
    return None


def _said_of_heads(found: Mapping[str, Any]) -> Iterator[Described]:
    columns = list(zip(*(found[k] for k in ("d", "N0", "N1", "N0hat", "N1hat")), strict=True))
    yield _growth(found["curves"])
    factor = float(quoted("N0hat_minus_N0_over_d"))
    above = {d: (hat - n0) / d for d, n0, _, hat, _ in columns}
    yield Described(
        "how far the measured N0hat lies above N0", f"about {factor:g}·d",
        _listed({d: f"{value:.1f}·d" for d, value in above.items()}),
        all(within(relative=ABOUT)(value, factor) for value in above.values()),
    )  # fmt: skip
    most = float(quoted("N1hat_vs_N1_max_error_pct"))
    errors = {d: 100 * (hat / n1 - 1) for d, _, n1, _, hat in columns}
    yield Described(
        "how far the measured N1hat lies from N1", f"at most {most:g} %",
        _listed({d: f"{error:+.1f} %" for d, error in errors.items()}),
        all(abs(error) <= most + 0.05 for error in errors.values()),
    )  # fmt: skip
    yield Described(
        "which comes first", "memory: N1hat below N0hat in every column",
        _listed({d: f"{n1:.0f} and {n0:.0f}" for d, _, _, n0, n1 in columns}),
        all(n1 < n0 for _, _, _, n0, n1 in columns),
    )  # fmt: skip
    printed = [int(d) for d in quoted("fig1_incomplete_d").split(";")]
    continued = [d for d, more in zip(found["d"], found["extrapolated"], strict=True) if more]
    yield Described(
        "columns that are continued by a parabola", " and ".join(f"d = {d}" for d in printed),
        f"{', '.join(f'd = {d}' for d in continued) or 'none'} here; the columns of Table 2 are "
        f"d = {', '.join(map(str, WIDTHS))}",
        set(printed) <= set(WIDTHS),
    )  # fmt: skip


def _listed(values: Mapping[Any, str]) -> str:
    return "; ".join(f"d = {d}: {text}" for d, text in values.items())


def _growth(curves: Rows) -> Described:
    """Exponents of the times' growth where they are longest: in the widest column."""
    widest = max(row["d"] for row in curves)
    found = {
        form: exponent([r for r in curves if (r["d"], r["form"]) == (widest, form)])
        for form in (DIRECT, EFFICIENT)
    }
    return Described(
        "growth of the time with N", "quadratic for the direct form, linear for the efficient one",
        f"N^{found[DIRECT]:.2f} and N^{found[EFFICIENT]:.2f} over the last doubling timed for "
        f"d = {widest}",
        all(within(absolute=EXPONENT)(found[f], p) for f, p in ((DIRECT, 2), (EFFICIENT, 1))),
    )  # fmt: skip


def exponent(rows: Rows) -> float:
    """How the time grew over the last doubling that was timed."""
    times = {row["seq_len"]: row["time_s"] for row in rows if not row["extrapolated"]}
    end = max(times)
    return log(times[end] / times[end // 2]) / log(2)


def encoders() -> FigureData:
    """Figure 2: an encoder with d = 32 in three versions."""
    found = measured("004", "encoder")
    known = {(row["mechanism"], row["seq_len"]): row for row in found["curves"]}
    rows = [
        {**row, **{f"{word}_ratio": row[field] / known[STANDARD, row["seq_len"]][field]
                   for word, field in (("memory", "peak_bytes"), ("time", "time_s"))}}
        for row in found["curves"]
    ]  # fmt: skip
    described = (*_crossovers(found), *_shares(found), _competitive(rows, found))
    printed = {
        "crossovers": {name: _printed(f"sec52_{word}_crossover_tokens")
                       for name, word in (("memory", "memory"), ("time", "speed"))},
        "memory_shares": SHARES,
    }  # fmt: skip
    ours = {name: found[f"{name}_crossover"] for name in ("memory", "time")}
    return FigureData(rows, described, {"printed": printed, "ours": ours, "model": found["model"]})


def _printed(quantity: str) -> int:
    return int(quoted(quantity))


def _crossovers(found: Mapping[str, Any]) -> Iterator[Described]:
    for name, word, what in (("memory", "memory", "less memory"), ("time", "speed", "faster")):
        printed, ours = _printed(f"sec52_{word}_crossover_tokens"), found[f"{name}_crossover"]
        yield Described(
            f"tokens from which the efficient encoder is {what}" if name == "time"
            else f"tokens from which the efficient encoder needs {what}",
            str(printed),
            "beyond those measured" if ours is None else f"{ours:.0f}",
            ours is not None and within(absolute=50)(printed, ours),
        )  # fmt: skip


def _shares(found: Mapping[str, Any]) -> Iterator[Described]:
    ratios = dict(zip(found["seq_len"], found["memory_ratio"], strict=True))
    for length, share in SHARES.items():
        yield Described(
            f"memory of the efficient encoder at {length} tokens, as a share of the standard one's",
            f"{share:.0%}", f"{ratios[int(length)]:.1%}", rounded(2)(share, ratios[int(length)]),
        )  # fmt: skip


def _competitive(rows: Rows, found: Mapping[str, Any]) -> Described:
    """The direct encoder beside the standard one, below the memory crossover."""
    short = [
        r for r in rows if r["mechanism"] == DIRECT and r["seq_len"] <= found["memory_crossover"]
    ]
    most = {word: max(r[f"{word}_ratio"] for r in short) for word in ("time", "memory")}
    return Described(
        "the direct encoder for shorter sequences", "competitive with the standard one",
        f"at most {most['time']:.2f} times its time and {most['memory']:.2f} times its memory",
        all(value <= 1 + COMPETITIVE for value in most.values()),
    )  # fmt: skip


FIGURES: dict[str, Figure] = {
    "1": Figure("Time and memory of one head over length", heads, measured=True),
    "2": Figure("An encoder with d = 32: memory and time", encoders, measured=True),
    "4": Figure("Mean norms of intermediate results", norms, measured=True),
    "5": Figure("Errors of the fitted laws", errors, measured=True),
}
