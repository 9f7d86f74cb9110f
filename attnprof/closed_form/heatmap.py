"""The ratio of two costs over sequence length and model width, for several head counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnprof.closed_form.quantities import comparable, formula_values, pairs_for, published_values
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.record import ColumnarRecords, HeatmapRecord, Report
from attnprof.units import format_number, joined, plural, words_of
from attnprof.workload import Workload

if TYPE_CHECKING:
    import numpy as np

#: Sources of a cost that has a value at every size without running anything.
KINDS = ("published", "formula")
#: Fields of a cell of the heatmap.
CELLS = ("seq_len", "d_model", "num_heads", "value_a", "value_b", "ratio")
#: Fields of the summary, each by head count: by how many percent A costs more than B.
EXCESS = ("mean_excess_percent", "max_excess_percent", "max_at")
#: A function of a head count and model widths: costs of A and of B as arrays (seq_len, d_model).
_Values = Callable[[int, Sequence[int]], "list[np.ndarray]"]
#: Cells of one report; a few gigabytes of columns.
MOST_CELLS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """The request of a heatmap: two mechanisms, the axes, and the cost that is compared.

    ``scope`` None means any scope that a document prints, and ``layer`` for our own formulas.
    """

    a: Mechanism
    b: Mechanism
    seq_lens: Sequence[int]
    d_models: Sequence[int]
    num_heads: Sequence[int]
    kind: str = "published"
    quantity: str = "flops"
    phase: str = "train"
    scope: str | None = None
    causal: bool = False
    batch_size: int = 1
    dtype: str = "float32"


def heatmap_report(request: Heatmap, environment: dict[str, Any] | None = None) -> Report:
    """Return cells as records; the summary has the excess of A, 100·(A/B - 1), by head count.

    Raises RequestError if a mechanism lacks the formula, or there are too many cells.
    """
    import numpy as np

    _check_request(request)
    published = request.kind == "published"
    values, terms = (_published_costs if published else _formula_costs)(request)
    columns: dict[str, list[Any]] = {name: [] for name in CELLS}
    excess: dict[str, dict[str, Any]] = {name: {} for name in EXCESS}
    missing: dict[str, list[int]] = {}
    for heads in request.num_heads:  # by head count, then length, then width
        fits = {width: published or width % heads == 0 for width in request.d_models}
        present = [fits[width] for width in request.d_models]
        widths = [width for width in request.d_models if fits[width]]
        a, b = values(heads, widths)
        ratio = (a / np.where(b == 0, np.nan, b)).astype(np.float64)
        size = len(request.seq_lens) * len(present)
        cells: tuple[list[Any], ...] = (
            [n for n in request.seq_lens for _ in present],
            [*request.d_models] * len(request.seq_lens),
            [heads] * size, _flat_list(a, present), _flat_list(b, present),
            _flat_list(np.where(np.isnan(ratio), np.array(None), ratio), present),
        )  # fmt: skip
        for name, some in zip(CELLS, cells, strict=True):
            columns[name] += some
        for name, value in zip(EXCESS, _excess(request.seq_lens, widths, ratio), strict=True):
            excess[name][str(heads)] = value
        if not all(present):
            missing[str(heads)] = [width for width in request.d_models if not fits[width]]
    what = {"kind": request.kind, "quantity": request.quantity, "phase": request.phase}
    summary = {
        "mechanism_a": request.a.name, "mechanism_b": request.b.name,
        "params_a": request.a.params, "params_b": request.b.params, **what,
        "causal": request.causal, **terms, **excess, "cells": len(columns["ratio"]),
        "null_cells": columns["ratio"].count(None), "not_divisible_d_model": missing,
    }  # fmt: skip
    summary["answer"] = heatmap_answer(summary)
    records = ColumnarRecords(HeatmapRecord, columns, what)
    return Report("heatmap", records, summary, environment or {})


def _check_request(request: Heatmap) -> None:
    if request.kind not in KINDS:
        raise RequestError(
            f"--kind {request.kind}: a heatmap compares closed forms; type one of "
            f"{', '.join(KINDS)}"
        )
    cells = len(request.seq_lens) * len(request.d_models) * len(request.num_heads)
    if cells > MOST_CELLS:
        raise RequestError(
            f"{cells} cells are more than {MOST_CELLS}; take larger steps, like --seq 1:4096:x2"
        )
    if request.kind == "published" and request.batch_size != 1:
        raise RequestError(
            "printed formulas count one sequence; leave --batch out, or use --kind formula"
        )


def _published_costs(request: Heatmap) -> tuple[_Values, dict[str, Any]]:
    # a workload turns the phase prefill into a causal forward pass
    workload = Workload(1, 1, 1, phase=request.phase, causal=request.causal)
    phase, causal, scope = workload.phase, workload.causal, request.scope
    pairs = comparable(request.a, request.b)
    matching = pairs_for(pairs, request.quantity, phase, causal, scope, request.num_heads)
    if not matching:
        possible = dict.fromkeys(
            f"--quantity {x.quantity} --phase {x.phase} --scope {x.scope}"
            f"{' --causal' if x.causal else ''}{' --heads 1' if x.heads == 'one' else ''}"
            f" ({x.source}, {y.source})"
            for x, y in pairs
        )
        instead = f"printed for both: {'; '.join(possible)}; or"
        raise RequestError(
            f"no document prints {'causal ' if causal else ''}{request.quantity} of phase {phase} "
            f"for both {request.a.name} and {request.b.name}"
            f"{f' in scope {scope}' if scope else ''}; "
            f"{instead if pairs else 'nothing is printed for both on the same terms:'} "
            "use --kind formula"
        )
    pair = matching[0]

    def values(heads: int, widths: Sequence[int]) -> "list[np.ndarray]":
        return [published_values(form, heads, request.seq_lens, widths) for form in pair]

    return values, {
        "scope": pair[0].scope, "convention": pair[0].convention,
        "source_a": pair[0].source, "source_b": pair[1].source,
    }  # fmt: skip


def _formula_costs(request: Heatmap) -> tuple[_Values, dict[str, Any]]:
    scope = request.scope or "layer"
    if all(width % heads for heads in request.num_heads for width in request.d_models):
        raise RequestError(
            f"no cell has a value: heads {_sizes_text(request.num_heads)} divide none of d_model "
            f"{_sizes_text(request.d_models)}; type widths that are multiples, like --d-model "
            f"{request.num_heads[0]}:{request.num_heads[0] * 16}:x2"
        )

    def values(heads: int, widths: Sequence[int]) -> "list[np.ndarray]":
        workload = Workload(
            1, heads, 1, request.batch_size,
            causal=request.causal, phase=request.phase, dtype=request.dtype,
        )  # fmt: skip
        dims = [width // heads for width in widths]
        return [
            formula_values(mechanism, workload, scope, request.quantity, request.seq_lens, dims)
            for mechanism in (request.a, request.b)
        ]

    convention = "operations" if request.quantity == "operations" else "flops"
    return values, {"scope": scope, "convention": convention, "source_a": None, "source_b": None}


def _sizes_text(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:6])) + (", …" if len(sizes) > 6 else "")


def _excess(
    seq_lens: Sequence[int], widths: Sequence[int], ratio: "np.ndarray"
) -> tuple[Any, Any, Any]:
    """Return mean and maximum of 100·(ratio - 1) over cells with a ratio, and its largest cell."""
    import numpy as np

    finite = np.isfinite(ratio)
    if not finite.any():
        return None, None, None
    row, column = divmod(int(np.nanargmax(ratio)), len(widths))
    return (
        100 * (float(ratio[finite].mean()) - 1),
        100 * (float(ratio[row, column]) - 1),
        {"seq_len": seq_lens[row], "d_model": widths[column]},
    )


def _flat_list(values: "np.ndarray", present: Sequence[bool]) -> list[Any]:
    """Return the values row by row as Python numbers; None for widths that are not ``present``."""
    import numpy as np

    full = values
    if not all(present):
        full = np.full((len(values), len(present)), None, dtype=object)
        full[:, present] = values
    return list(full.ravel().tolist())


def heatmap_answer(summary: Mapping[str, Any]) -> str:
    """Return how much more A needs than B on average, with the fewest and the most heads."""
    means = {int(h): mean for h, mean in summary["mean_excess_percent"].items() if mean is not None}
    a, b, clauses = summary["mechanism_a"], summary["mechanism_b"], list[str]()
    if not means or a == b:
        return ""
    less, _, noun = words_of(summary["quantity"])
    for heads in dict.fromkeys((min(means), max(means))):
        amount, than = _percent_text(means[heads], less), "than" if means[heads] else "as"
        whom = f" {noun} {than} {b}" * (not clauses)
        clauses.append(f"{amount}{whom} with {plural(heads, 'head')}")
    sizes = "all sizes with a ratio" if summary["null_cells"] else "all sizes"
    return f"On average over {sizes}, {a} needs {joined(clauses)}."


def _percent_text(percent: float, less: str) -> str:
    """Return ``30 % more``; with decimals, ``99.7 % fewer``, where 0 or 100 would mislead."""
    whole = f"{abs(percent):,.0f}"
    if whole in ("0", "100") and percent != -100:
        whole = format_number(abs(percent), short=True)
    return f"{whole} % {'more' if percent > 0 else less}" if percent else "the same"
