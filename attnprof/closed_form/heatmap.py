"""The ratio of two costs over sequence length and model width, for several head counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isnan
from typing import TYPE_CHECKING, Any

from attnprof.closed_form.printed import published_pair, published_values
from attnprof.closed_form.quantities import formula_values
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.record import ColumnarRecords, HeatmapRecord, Report
from attnprof.workload import Workload

if TYPE_CHECKING:
    import numpy as np

KINDS = ("published", "formula")
#: Cells of one report; a few gigabytes of columns.
MOST_CELLS = 20_000_000


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """What is asked: two mechanisms, the axes, and which cost is compared.

    ``scope`` None is whatever a document prints, and ``layer`` for our own formulas.
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


@dataclass(frozen=True)
class Panel:
    """One head count: both costs and their ratio over (seq_len, d_model).

    ``present`` tells for each d_model whether its cells have values; the ratio is NaN where they
    have none or the second cost is zero.
    """

    num_heads: int
    value_a: np.ndarray
    value_b: np.ndarray
    ratio: np.ndarray
    present: np.ndarray


def heatmap_report(asked: Heatmap, environment: dict[str, Any] | None = None) -> Report:
    """The cells as records, with mean and maximum excess per head count in the summary.

    Raises :class:`RequestError` where the two may not be compared as asked.
    """
    _check(asked)
    panels, terms = (_published if asked.kind == "published" else _formula)(asked)
    summary = {
        "mechanism_a": asked.a.name, "mechanism_b": asked.b.name,
        "params_a": asked.a.params, "params_b": asked.b.params,
        "kind": asked.kind, "quantity": asked.quantity, "phase": asked.phase,
        "causal": asked.causal, **terms, **_excess(asked, panels),
    }  # fmt: skip
    return Report("heatmap", _records(asked, panels), summary, environment or {})


def _check(asked: Heatmap) -> None:
    if asked.kind not in KINDS:
        raise RequestError(
            f"--kind {asked.kind}: a heatmap compares closed forms; type one of {', '.join(KINDS)}"
        )
    cells = len(asked.seq_lens) * len(asked.d_models) * len(asked.num_heads)
    if cells > MOST_CELLS:
        raise RequestError(
            f"{cells} cells are more than {MOST_CELLS}; take larger steps, like --seq 1:4096:x2"
        )
    if asked.kind == "published" and asked.batch_size != 1:
        raise RequestError(
            "printed formulas count one sequence; leave --batch out, or use --kind formula"
        )


def _published(asked: Heatmap) -> tuple[list[Panel], dict[str, Any]]:
    # the same names for phases as everywhere: prefill is a causal forward
    named = Workload(1, 1, 1, phase=asked.phase, causal=asked.causal)
    first, second = published_pair(
        asked.a, asked.b, quantity=asked.quantity, phase=named.phase, causal=named.causal,
        scope=asked.scope, heads=asked.num_heads,
    )  # fmt: skip
    columns = range(len(asked.d_models))
    panels = []
    for heads in asked.num_heads:
        values = [
            published_values(form, heads, asked.seq_lens, asked.d_models)
            for form in (first, second)
        ]
        panels.append(_panel(heads, values, columns, len(columns)))
    return panels, {
        "scope": first.scope, "convention": first.convention,
        "source_a": first.source, "source_b": second.source,
    }  # fmt: skip


def _formula(asked: Heatmap) -> tuple[list[Panel], dict[str, Any]]:
    scope = asked.scope or "layer"
    if all(width % heads for heads in asked.num_heads for width in asked.d_models):
        raise RequestError(
            f"no cell has a value: heads {_shown(asked.num_heads)} divide none of d_model "
            f"{_shown(asked.d_models)}; type widths that are multiples, like --d-model "
            f"{asked.num_heads[0]}:{asked.num_heads[0] * 16}:x2"
        )
    panels = []
    for heads in asked.num_heads:
        columns = [i for i, width in enumerate(asked.d_models) if width % heads == 0]
        dims = [asked.d_models[i] // heads for i in columns]
        workload = Workload(
            1, heads, 1, asked.batch_size,
            causal=asked.causal, phase=asked.phase, dtype=asked.dtype,
        )  # fmt: skip
        values = [
            formula_values(mechanism, workload, scope, asked.quantity, asked.seq_lens, dims)
            for mechanism in (asked.a, asked.b)
        ]
        panels.append(_panel(heads, values, columns, len(asked.d_models)))
    convention = "operations" if asked.quantity == "operations" else "flops"
    return panels, {"scope": scope, "convention": convention, "source_a": None, "source_b": None}


def _shown(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:6])) + (", …" if len(sizes) > 6 else "")


def _panel(heads: int, values: Sequence[np.ndarray], columns: Sequence[int], width: int) -> Panel:
    """A panel from both costs over the columns that have values."""
    import numpy as np

    a, b = values
    present = np.zeros(width, dtype=bool)
    present[list(columns)] = True
    ratio = np.full((len(a), width), np.nan)
    zero = b == 0
    quotient = a / np.where(zero, 1, b)
    ratio[:, present] = np.where(zero, np.nan, quotient.astype(np.float64))
    return Panel(heads, a, b, ratio, present)


def _excess(asked: Heatmap, panels: Sequence[Panel]) -> dict[str, Any]:
    """Mean and maximum of 100·(ratio - 1) over the cells that have one, by head count."""
    import numpy as np

    mean: dict[str, float | None] = {}
    largest: dict[str, float | None] = {}
    where: dict[str, dict[str, int] | None] = {}
    missing: dict[str, list[int]] = {}
    for panel in panels:
        key, known = str(panel.num_heads), np.isfinite(panel.ratio)
        mean[key] = largest[key] = where[key] = None
        if known.any():
            mean[key] = 100 * (float(panel.ratio[known].mean()) - 1)
            row, column = divmod(int(np.nanargmax(panel.ratio)), len(asked.d_models))
            largest[key] = 100 * (float(panel.ratio[row, column]) - 1)
            where[key] = {"seq_len": asked.seq_lens[row], "d_model": asked.d_models[column]}
        if not panel.present.all():
            widths = zip(asked.d_models, panel.present.tolist(), strict=True)
            missing[key] = [width for width, there in widths if not there]
    cells = sum(panel.ratio.size for panel in panels)
    empty = sum(int(np.count_nonzero(~np.isfinite(panel.ratio))) for panel in panels)
    return {
        "mean_excess_percent": mean,
        "max_excess_percent": largest,
        "max_at": where,
        "cells": cells,
        "null_cells": empty,
        "not_divisible_d_model": missing,
    }


def _records(asked: Heatmap, panels: Sequence[Panel]) -> ColumnarRecords:
    """One record a cell: by head count, then length, then width."""
    rows, widths = asked.seq_lens, list(asked.d_models)
    seq = list(chain.from_iterable([n] * len(widths) for n in rows))
    columns: dict[str, list[Any]] = {
        "seq_len": seq * len(panels),
        "d_model": widths * (len(rows) * len(panels)),
        "num_heads": list(chain.from_iterable([p.num_heads] * len(seq) for p in panels)),
        "value_a": list(chain.from_iterable(_listed(p.value_a, p.present) for p in panels)),
        "value_b": list(chain.from_iterable(_listed(p.value_b, p.present) for p in panels)),
        "ratio": [
            None if isnan(ratio) else ratio for p in panels for ratio in p.ratio.ravel().tolist()
        ],
    }
    constants = {"kind": asked.kind, "quantity": asked.quantity, "phase": asked.phase}
    return ColumnarRecords(HeatmapRecord, columns, constants)


def _listed(values: np.ndarray, present: np.ndarray) -> list[Any]:
    """Python numbers, None in the columns that have none."""
    import numpy as np

    if present.all():
        return values.ravel().tolist()
    full = np.full((len(values), len(present)), None, dtype=object)
    full[:, present] = values
    return list(full.ravel().tolist())
