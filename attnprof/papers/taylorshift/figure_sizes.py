"""004, Figures 4 and 5: mean sizes of intermediate results over N, and the fitted laws' errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from attnprof.papers.agreement import formula
from attnprof.papers.measured import measured
from attnprof.papers.regenerated import Described, FigureData
from attnprof.papers.taylorshift.formulas import symbol
from attnprof.papers.taylorshift.norms import EXPRESSIONS, POWERS
from attnprof.papers.taylorshift.results import quoted
from attnprof.papers.taylorshift.sizes import LENGTH, NORMAL, SPHERE, denominator, law, printed_laws

#: What two curves in a log-log plot may differ by and still look alike.
ALIKE = 0.03
#: What B.2 grants for large N; sampling adds twice its standard error.
ERROR = float(quoted("fig5_error_pct_large_N")) / 100


@cache
def _function(expression: str, kind: str | None) -> Callable[[float, float], float]:
    """A law in numbers: as printed for no kind of V, else by the moments of the draws."""
    import sympy

    text = formula(printed_laws()[expression]) if kind is None else law(expression, kind)
    found: Callable[[float, float], float] = sympy.lambdify(
        (symbol("N"), symbol("d")), text, "math"
    )
    return found


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    """Every sampled norm with the law that is printed, the one by moments, and their errors."""
    found = []
    for row in measured("004", "norms"):
        at = (row["seq_len"], row["d"])
        printed = _function(row["expression"], None)(*at)
        ours = _function(row["expression"], row["values"])(*at)
        found.append({
            **row, "law_printed": printed, "law": ours,
            "error_printed": abs(printed / row["norm"] - 1),
            "error": abs(ours / row["norm"] - 1),
            "sampling_error": row["standard_error"] / row["norm"],
        })  # fmt: skip
    return tuple(found)


def norms() -> FigureData:
    """Figure 4: the sizes."""
    return FigureData(_rows(), tuple(_said_of_norms()), {"laws": _texts()})


def errors() -> FigureData:
    """Figure 5: relative errors of the laws."""
    facts = {"laws": _texts(), "granted": ERROR, "corrected": {"Y_denom": str(denominator())}}
    return FigureData(_rows(), tuple(_said_of_errors()), facts)


def _texts() -> dict[str, str]:
    """The printed laws by expression."""
    return {name: printed_laws()[name] for name in EXPRESSIONS}


def _said_of_norms() -> Iterator[Described]:
    constants = {(f["expression"], f["d"], f["values"]): f["constant"]
                 for f in measured("004", "fits")}  # fmt: skip
    for name in EXPRESSIONS:
        yield _law(
            name, {d: c for (e, d, kind), c in constants.items() if (e, kind) == (name, NORMAL)}
        )
    off = {
        name: [c / _limit(name, d) for (e, d, kind), c in constants.items()
               if (e, kind) == (name, SPHERE)]
        for name in ("QK^T V", "Y")
    }  # fmt: skip
    yield Described(
        "how rows of V are drawn", "uniformly from the unit sphere",
        "entries of unit variance; on the sphere the sizes are "
        + " and ".join(
            f"{min(values):.2f} to {max(values):.2f} of the law for {name}"
            for name, values in off.items()
        ),
        all(abs(ratio - 1) <= ALIKE for values in off.values() for ratio in values),
    )  # fmt: skip


def _limit(expression: str, d: int) -> float:
    """The printed law's own constant c of c·N^p for long sequences."""
    length = 1e12
    return _function(expression, None)(length, d) / float(length ** POWERS[expression])


def _law(name: str, constants: Mapping[int, float]) -> Described:
    """The printed law's constants beside the fitted ones."""
    ratios = [c / _limit(name, d) for d, c in constants.items()]
    power = {1.0: "N", 0.5: "√N", -0.5: "1/√N"}[POWERS[name]]
    fitted = ", ".join(f"{c:.4g}" for c in constants.values())
    widths = ", ".join(map(str, constants))
    return Described(
        f"how {name} grows", printed_laws()[name],
        f"{fitted} times {power} for d = {widths}: {min(ratios):.3f} to {max(ratios):.3f} of "
        "the printed law", all(abs(ratio - 1) <= ALIKE for ratio in ratios),
    )  # fmt: skip


def _said_of_errors() -> Iterator[Described]:
    """Each law at the longest length, for V as the document draws it; the other V beside it."""
    for name in EXPRESSIONS:
        errors = {
            kind: max(
                row["error_printed"] for row in _rows()
                if (row["expression"], row["values"], row["seq_len"]) == (name, kind, LENGTH)
            )
            for kind in (NORMAL, SPHERE)
        }  # fmt: skip
        yield Described(
            f"error of the law for {name} at large N", f"at most {ERROR:.0%}",
            f"at N = {LENGTH:,} at most {errors[SPHERE]:.1%} with rows of V on the sphere, as it "
            f"draws them ({errors[NORMAL]:.1%} with V of unit variance)",
            errors[SPHERE] <= ERROR,
        )  # fmt: skip
