"""004's figures and tables, made again.

Figures show time and memory over length, sizes of results, and errors of the fitted laws. Tables
compare printed values with values by definitions, counts, or other tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from math import exp, log
from typing import Any

import sympy

from attnprof.papers.checks import formula, rounded, within
from attnprof.papers.documents import measured
from attnprof.papers.regenerated import Computed, Row, Statement, both_values, figures_of, tables_of
from attnprof.papers.taylorshift import checks_quoted, checks_sizes
from attnprof.papers.taylorshift.checks_costs import DOCUMENT, WIDTHS, D, N, first_lengths, quoted
from attnprof.papers.taylorshift.checks_quoted import DATASETS, MODEL, SHARES, accuracies, delay
from attnprof.papers.taylorshift.checks_sizes import ERROR, LENGTH, NORMAL, SPHERE, printed_laws
from attnprof.papers.taylorshift.measurements import DEFAULT, DIRECT, EFFICIENT, KEPT, STANDARD

#: The allocator's treatment of freed memory, by the crossover.
SETTINGS = {"N0hat": "freed memory kept", "N0hat_default": "with the allocator's defaults"}
#: Tolerances for "about", "competitive" and a slope in a figure.
ABOUT, COMPETITIVE, EXPONENT = 0.1, 0.25, 0.2
#: The relative difference up to which two curves in a log-log plot look alike.
ALIKE = 0.03
#: Crossovers of Figure 1, and the panel in which they are marked.
CROSSOVERS = {"N0": "time_s", "N0hat": "time_s", "N0hat_default": "time_s", "N1": "peak_bytes",
              "N1hat": "peak_bytes"}  # fmt: skip

_Rows = Sequence[Mapping[str, Any]]


def heads() -> Computed:
    """Return Figure 1: one head; columns by d, time above memory."""
    results = measured("004", "crossovers")
    marks: list[dict[str, Any]] = []
    for place, d in enumerate(results["d"]):
        direct = [r for r in results["curves"] if r["d"] == d and r["form"] == DIRECT]
        for name, field in CROSSOVERS.items():
            length, setting = results[name][place], DEFAULT if "default" in name else KEPT
            rows = [row for row in direct if row["allocator"] == setting]
            at = height(rows, field, length) if length is not None else None
            marks.append({"d": d, "name": name, "field": field, "seq_len": length, "value": at})
    facts = {
        "marks": marks, "widths": [d for d in results["d"] if d in WIDTHS],
        "longest": dict(zip(results["d"], results["longest"], strict=True)),
        "where": results["where"],
    }  # fmt: skip
    return results["curves"], _said_of_heads(results), facts


def height(rows: _Rows, field: str, length: float) -> float | None:
    """Return a curve's value at a length, on straight lines in the logarithms; None outside."""
    points = sorted((r["seq_len"], r[field]) for r in rows if r[field] is not None)
    for (a, x), (b, y) in pairwise(points):
        if a < b and a <= length <= b:
            share = log(length / a) / log(b / a)
            return float(x * exp(share * log(y / x)))
    return None


def _said_of_heads(results: Mapping[str, Any]) -> Iterator[Statement]:
    names = ("d", "N1", "N0hat", "N1hat", "longest")
    columns = list(zip(*(results[name] for name in names), strict=True))
    yield _growth(results["curves"])
    yield from map(_law, ("N0hat", "N0hat_default"))
    most = float(quoted("N1hat_vs_N1_max_error_pct"))
    errors = {d: 100 * (hat / n1 - 1) for d, n1, _, hat, _ in columns}
    words = {"most": most, "errors": _listed({d: f"{e:+.1f} %" for d, e in errors.items()})}
    yield "memory", all(abs(error) <= most + 0.05 for error in errors.values()), words
    both = {d: (n1, n0) for d, _, n0, n1, _ in columns if n0 is not None}
    pairs = _listed({d: f"{n1:.0f} and {n0:.0f}" for d, (n1, n0) in both.items()})
    yield "order", all(n1 < n0 for n1, n0 in both.values()), {"both": pairs}
    printed = [int(d) for d in quoted("fig1_incomplete_d").split(";")]
    beyond = [f"d = {d} beyond {last:,} tokens" for d, _, n0, _, last in columns if n0 is None]
    yield "continued", set(printed) <= set(WIDTHS), {
        "printed": " and ".join(f"d = {d}" for d in printed),
        "beyond": ", ".join(beyond) or "none", "widths": ", ".join(map(str, WIDTHS)),
    }  # fmt: skip


def _law(name: str) -> Statement:
    """Return the statement on crossings in time minus N0, with intervals, and the law's factor."""
    results, factor = measured("004", "crossovers"), float(quoted("N0hat_minus_N0_over_d"))
    ending = name.removeprefix("N0hat")
    law = delay(checks_quoted.measured_crossings(name))
    names = ("d", "N0", name, f"N0hat_low{ending}", f"N0hat_high{ending}")
    ends = zip(*(results[k] for k in names), strict=True)
    each = {d: _times_d(d, n0, at, low, high) for d, n0, at, low, high in ends if at is not None}
    words = f"{law['factor']:.1f}·d"
    if law["low"] is not None:
        words += f", from {law['low']:.1f}·d to {law['high']:.1f}·d with 95 %"
    gaps = {"setting": SETTINGS[name], "factor": factor, "told": words, "each": _listed(each)}
    return "law", within(relative=ABOUT)(law["factor"], factor), gaps


def _times_d(d: int, n0: float, at: float, low: float | None, high: float | None) -> str:
    """Return ``8.0·d (7.1 to 9.0)``, with … for an unknown end."""
    ends = ("…" if end is None else f"{(end - n0) / d:.1f}" for end in (low, high))
    return f"{(at - n0) / d:.1f}·d ({' to '.join(ends)})"


def _listed(values: Mapping[Any, str]) -> str:
    return "; ".join(f"d = {d}: {text}" for d, text in values.items())


def _growth(curves: _Rows) -> Statement:
    """Return the statement on exponents of times, for the widest heads, which take longest."""
    widest, gaps, agree = max(row["d"] for row in curves), dict[str, Any](), list[bool]()
    for name, form, power in (("direct", DIRECT, 2), ("efficient", EFFICIENT, 1)):
        of_form = [r for r in curves if (r["d"], r["form"], r["allocator"]) == (widest, form, KEPT)]
        times = {row["seq_len"]: row["time_s"] for row in of_form}
        last = max(times)
        first = min((n for n in times if n < last), key=lambda n: abs(log(2 * n / last)))
        gaps[name] = log(times[last] / times[first]) / log(last / first)
        gaps |= {"first": first, "last": last}
        agree.append(abs(gaps[name] - power) <= EXPONENT)
    return "growth", all(agree), {**gaps, "d": widest}


def encoders() -> Computed:
    """Return Figure 2: an encoder with d = 32 in three versions."""
    results = measured("004", "encoder")
    standard = {(row["allocator"], row["seq_len"]): row for row in results["curves"]
                if row["mechanism"] == STANDARD}  # fmt: skip
    rows = []
    for row in results["curves"]:
        base = standard[row["allocator"], row["seq_len"]]
        fields = {"memory_ratio": "peak_bytes", "time_ratio": "time_s"}
        rows.append({**row, **{name: row[field] / base[field] for name, field in fields.items()}})
    crossovers = {
        name: int(quoted(f"sec52_{word}_crossover_tokens"))
        for name, word in (("memory", "memory"), ("time", "speed"))
    }
    ours = {name: results[f"{name}_crossover"] for name in crossovers}
    ours["time_default"] = results["time_crossover_default"]
    printed = {"crossovers": crossovers, "memory_shares": SHARES}
    facts = {"printed": printed, "ours": ours, "model": results["model"], "where": results["where"]}
    return rows, _said_of_encoders(rows, results, crossovers), facts


def _said_of_encoders(
    rows: _Rows, measured: Mapping[str, Any], crossovers: Mapping[str, int]
) -> Iterator[Statement]:
    for name, what, ending in (
        ("memory", "needs less memory", ""),
        ("time", f"is faster, {SETTINGS['N0hat']}", ""),
        ("time", f"is faster, {SETTINGS['N0hat_default']}", "_default"),
    ):
        printed, ours = crossovers[name], measured[f"{name}_crossover{ending}"]
        gaps = {"what": what, "printed": printed, "ours": _with_ends(measured, name, ending)}
        yield "crossover", ours is not None and within(absolute=50)(printed, ours), gaps
    ratios = dict(zip(measured["seq_len"], measured["memory_ratio"], strict=True))
    for length, share in SHARES.items():
        ratio = ratios[int(length)]
        gaps = {"length": length, "share": share, "ratio": ratio}
        yield "share", rounded(2)(share, ratio), gaps
    # the direct encoder's ratio to the standard one, below the memory crossover
    direct = [row for row in rows if row["mechanism"] == DIRECT]
    short = [row for row in direct if row["seq_len"] <= measured["memory_crossover"]]
    most = {word: max(r[f"{word}_ratio"] for r in short) for word in ("time", "memory")}
    yield "direct", all(value <= 1 + COMPETITIVE for value in most.values()), most


def _with_ends(measured: Mapping[str, Any], name: str, ending: str) -> str:
    """Return a crossover, with its interval of 95 % where it is one of times."""
    at = measured[f"{name}_crossover{ending}"]
    if at is None:
        return f"beyond the {measured.get(f'longest{ending}', 0):,} tokens that were timed"
    if name == "memory":
        return f"{at:.0f}"
    ends = (measured[f"time_crossover_{end}{ending}"] for end in ("low", "high"))
    low, high = ("…" if end is None else f"{end:.0f}" for end in ends)
    return f"{at:.0f} ({low} to {high} with 95 %)"


@cache
def _function(expression: str, kind: str | None) -> Callable[[float, float], float]:
    """Return a law as a function: as printed if ``kind`` is None, else by moments of that V."""
    printed = formula(printed_laws()[expression])
    law = printed if kind is None else checks_sizes.law(expression, kind)
    function: Callable[[float, float], float] = sympy.lambdify((N, D), law, "math")
    return function


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    """Return every sampled norm, the printed law, the law by moments, and both errors."""
    rows = []
    for row in measured("004", "norms"):
        at = (row["seq_len"], row["d"])
        printed = _function(row["expression"], None)(*at)
        ours = _function(row["expression"], row["values"])(*at)
        rows.append({
            **row, "law_printed": printed, "law": ours,
            "error_printed": abs(printed / row["norm"] - 1),
            "error": abs(ours / row["norm"] - 1),
            "sampling_error": row["standard_error"] / row["norm"],
        })  # fmt: skip
    return tuple(rows)


def norms() -> Computed:
    """Return Figure 4: the sizes."""
    return _rows(), _said_of_norms(), {"laws": printed_laws()}


def errors() -> Computed:
    """Return Figure 5: relative errors of the laws."""
    corrected = {"Y_denom": str(checks_sizes.denominator())}
    facts = {"laws": printed_laws(), "granted": ERROR, "corrected": corrected}
    return _rows(), _said_of_errors(), facts


def _said_of_norms() -> Iterator[Statement]:
    ratios: dict[tuple[str, str], dict[int, float]] = {}
    constants: dict[tuple[str, str], list[str]] = {}
    for fit in checks_sizes.fit_norms():
        key, d, length = (fit["expression"], fit["values"]), fit["d"], 1e12
        constants.setdefault(key, []).append(f"{fit['constant']:.4g}")
        # the printed law's own constant c of c·N^p for long sequences
        limit = _function(key[0], None)(length, d) / float(length ** checks_sizes.POWERS[key[0]])
        ratios.setdefault(key, {})[d] = fit["constant"] / limit
    for name, text in printed_laws().items():
        power = {1.0: "N", 0.5: "√N", -0.5: "1/√N"}[checks_sizes.POWERS[name]]
        ratio_values = ratios[name, NORMAL]
        least, most = min(ratio_values.values()), max(ratio_values.values())
        yield "grows", 1 - least <= ALIKE and most - 1 <= ALIKE, {
            "name": name, "law": text, "constants": ", ".join(constants[name, NORMAL]),
            "power": power, "widths": ", ".join(map(str, ratio_values)), "least": least,
            "most": most,
        }  # fmt: skip
    off = {name: list(ratios[name, SPHERE].values()) for name in ("QK^T V", "Y")}
    ranges = (f"{min(v):.2f} to {max(v):.2f} of the law for {name}" for name, v in off.items())
    agrees = all(abs(ratio - 1) <= ALIKE for values in off.values() for ratio in values)
    yield "drawn", agrees, {"ratios": " and ".join(ranges)}


def _said_of_errors() -> Iterator[Statement]:
    """Yield each law at the longest length, for V as the document draws it, and the other V."""
    longest = [row for row in _rows() if row["seq_len"] == LENGTH]
    for name in checks_sizes.EXPRESSIONS:
        most = dict.fromkeys((NORMAL, SPHERE), 0.0)
        for row in longest:
            if row["expression"] == name:
                most[row["values"]] = max(most[row["values"]], row["error_printed"])
        gaps = {"name": name, "granted": ERROR, "length": LENGTH}
        yield "error", most[SPHERE] <= ERROR, {**gaps, **most}


FIGURES = figures_of("004", {
    "1": ("Time and memory of one head over length", heads),
    "2": ("An encoder with d = 32: memory and time", encoders),
    "4": ("Mean norms of intermediate results", norms),
    "5": ("Errors of the fitted laws", errors),
}, measured="1245")  # fmt: skip


#: Heads of each dataset's model.
HEADS = checks_quoted.setting("heads")


def _intermediate_sizes() -> list[dict[str, Any]]:
    """Return Table 1: the laws, and sizes of long sequences by the laws and by exact moments."""

    def short(value: float) -> float:
        return float(f"{value:.6g}")

    rows: list[dict[str, Any]] = []
    for expression, printed in printed_laws().items():
        said, ours = checks_sizes.printed_sizes(expression), checks_sizes.sizes(expression)
        agree, law = within(relative=ERROR), str(checks_sizes.law(expression))
        rows.append({
            "expression": expression, "size": printed, "root mean square": law,
            **{d: both_values(short(said[d]), short(ours[d]), agree) for d in said},
            "unit variance, d=64": short(checks_sizes.sizes(expression, NORMAL)["d=64"]),
        })  # fmt: skip
    return rows


def _normalisation() -> list[dict[str, Any]]:
    """Return Table 4; its last line is also in Tables 6 (direct, four heads) and 3 (efficient)."""
    elsewhere = {
        "direct_acc_pct": checks_quoted.column("acc_pct")[int(HEADS["cifar_pixel"])],
        "efficient_acc_pct": accuracies()[MODEL]["cifar_pixel"],
    }
    rows: list[dict[str, Any]] = []
    for row in DOCUMENT.rows("table04_normalization_ablation"):
        whole = row["variant"] == "input_norm+output_norm"
        cells = {
            name: both_values(float(row[name]) if row[name] else None, other if whole else None)
            for name, other in elsewhere.items()
        }
        rows.append({"variant": row["variant"], **cells})
    return rows


def _hyperparameters() -> list[dict[str, Any]]:
    """Return Table 7; the width is heads times 64."""
    rows: list[dict[str, Any]] = []
    for row in DOCUMENT.rows("table07_hyperparameters"):
        cells: dict[str, Any] = {name: row[name] for name in ("param", *DATASETS)}
        if row["param"] == "d_embed":
            width = checks_quoted.common_head_width()
            cells |= {d: both_values(int(row[d]), width * int(h)) for d, h in HEADS.items()}
        rows.append(cells)
    return rows


def _mebibytes(form: str, row: Row) -> float:
    """Return Table 6's memory of a form, as its entries account for it."""
    return round(checks_quoted.memory(form, int(row["h"])), 1)


TABLES = tables_of(
    "004",
    {
        "2": {
            "N0": lambda row: first_lengths(int(row["d"]))["N0"],
            "N1": lambda row: first_lengths(int(row["d"]))["N1"],
        },
        "3": {"average": lambda row: checks_quoted.average(row["model"])},
        "5": {
            "linear": lambda row: accuracies()[MODEL][row["dataset"]],
            "delta": lambda row: checks_quoted.deltas()[row["dataset"]],
        },
        "6": {f"{form} MiB": partial(_mebibytes, form) for form in ("direct", "efficient")},
    },
    {"1": _intermediate_sizes, "4": _normalisation, "7": _hyperparameters},
    {"1": lambda: {"length": LENGTH}, "6": lambda: {"beside": checks_quoted.beside_entries()}},
)
