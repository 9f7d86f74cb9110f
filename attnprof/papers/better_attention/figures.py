"""000's figures and tables, made again.

Figures compare Eq 24 with counts by the definitions; tables have parameters and head widths by
formula, and ranks from the values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import sympy

from attnprof import registry
from attnprof.papers.better_attention import checks_formulas as counts
from attnprof.papers.better_attention import checks_parameters as sizes
from attnprof.papers.better_attention import checks_tables
from attnprof.papers.better_attention.checks_formulas import PANELS, eq24, excess, multiply_adds
from attnprof.papers.better_attention.checks_parameters import DOCUMENT, MECHANISMS, rows
from attnprof.papers.better_attention.checks_tables import LABELS, RANK, label
from attnprof.papers.checks import rounded, same_formula
from attnprof.papers.documents import number
from attnprof.papers.regenerated import Computed, Statement, both_values, figures_of, tables_of

NAMES = LABELS["columns"]
_Row = dict[str, Any]
#: How a row's numbers are counted.
COUNTS: dict[str, Callable[[str], Any]] = {
    "Eq 24": eq24,
    "multiplications and additions": multiply_adds,
}
EQ24, EXACT = COUNTS
#: Figure 2's length, another length for comparison, and Figure 4's head count for both.
STATED, OTHER, ONE_HEAD = 64, 1024, 1
STEP, LARGEST = 64, 1024
SIZES = range(STEP, LARGEST + 1, STEP)


def _results(table: str) -> list[dict[str, Any]]:
    """Return a table of results, with recomputed sizes and ranks."""
    ranks = checks_tables.recomputed_ranks(table)
    return [_row(table, row, ranks.get(label(row), {})) for row in rows(table)]


def _row(table: str, row: dict[str, str], ranks: Mapping[str, int]) -> dict[str, Any]:
    """Return a row; values with ranks are text, as the document prints them."""
    shown: dict[str, Any] = {}
    for column, text in row.items():
        if column.endswith((RANK, "_printed")) or (column == "dataset" and table not in ("1", "2")):
            continue
        cell: Any = number(text) if text.isdigit() else text
        size, rank = column == "params", row.get(f"{column}{RANK}")
        if column == "d_k":
            cell = both_values(int(text), int(row["d_m"]) // int(row["h"]))
        elif rank:
            printed, ours = (row["params_printed"], _size(table, row)) if size else (text, text)
            cell = both_values(f"{printed} ({rank})", f"{ours} ({ranks[column]})")
        elif rank is not None:
            cell = both_values(row["params_printed"], _size(table, row)) if size else text
        shown[NAMES.get(column, column)] = cell
    return shown


def _size(table: str, row: dict[str, str]) -> str:
    """Return our number of parameters, written as in that table."""
    if table == "7":
        return f"{sizes.totals()[row['attention']]:.2f}M"
    count = sizes.expected(row)
    if table == "1":
        short = sizes.abbreviated(count)
        return f"{short / 1e6:.2f}M" if short >= 1_000_000 else f"{short // 1000}K"
    return f"{count / 1e6:.1f}M" if table == "3" else f"{count:,}"


def _constants() -> list[dict[str, Any]]:
    """Return the constants of Eq 24, and multiplications and additions by the definitions."""
    rows = []
    for row in DOCUMENT.rows("eq24_constants"):
        name = row["attention"]
        count = counts.results_counted(name)
        slope = count.coeff(counts.WIDTH, 1)
        head_term = str((count - slope * counts.WIDTH).expand())
        rows.append({
            "attention": name,
            "C": both_values(row["C_attn"], str(slope / counts.LENGTH), same_formula),
            "slope in d_m": both_values(row["slope_wrt_d_m"], counts.slopes()[name], same_formula),
            "head term": both_values(row["head_term"], head_term, same_formula),
            "multiplications and additions": str(multiply_adds(name)),
        })  # fmt: skip
    return rows


def _percentages() -> list[dict[str, Any]]:
    """Return the table of percentages that the text quotes."""
    shown = []
    for row in DOCUMENT.rows("quoted_percentages"):
        ours, digits = checks_tables.RECOMPUTED[row["id"]]
        percent = both_values(number(row["printed_pct"]), round(ours(), 4), rounded(digits))
        what = LABELS["quoted"][row["id"]]
        texts = {"where": row["where"], "what": what, "expression": row["expression"]}
        shown.append({**texts, "percent": percent})
    return shown


TABLES = tables_of(
    "000",
    {
        "fig3": {
            "mean excess (%)": lambda row: round(excess("mean")[row["h"]], 2),
            "largest excess (%)": lambda row: round(excess("max")[row["h"]], 2),
        }
    },
    {
        **{table: partial(_results, table) for table in sizes.TABLES},
        "eq24": _constants,
        "quoted": _percentages,
    },
)


BLOCK = ("mechanism", "block", "on", "map")
#: The figure's block, its input and its map's shape, by the name of a definition's step.
STEPS = {
    "queries": ("Linear", "Q", "d_m x d_m"),
    "keys": ("Linear", "K", "d_m x d_m"),
    "values": ("Linear", "V", "d_m x d_m"),
    "mixed values": ("Linear*", "V", "l x l"),
    "scores": ("MatMul", "Q K", ""),
    "scaling": ("Scale", "scores", ""),
    "normalisation": ("SoftMax", "scores", ""),
    "weighted values": ("MatMul", "scores V", ""),
    "output": ("Linear", "heads", "d_m x d_m"),
}


def _blocks(mechanism: str) -> list[dict[str, str]]:
    """Return a mechanism's blocks in order; inputs that no map splits into heads are sliced."""
    projected = registry.get(mechanism).projections
    parts = [("Slice", letter.upper(), "") for letter in "qkv" if letter not in projected]
    for stage in counts.definition(mechanism):
        if stage.name == "output":
            parts.append(("Concat", "heads", ""))
        if stage.name in STEPS:  # exponentials and row sums are part of another block
            parts.append(STEPS[stage.name])
    return [dict(zip(BLOCK, (mechanism, *block), strict=True)) for block in parts]


def diagram() -> Computed:
    """Return Figure 1: the blocks of all four mechanisms."""
    rows = [row for name in MECHANISMS for row in _blocks(name)]
    maps = {
        name: {(r["block"], r["on"]) for r in rows if r["mechanism"] == name and r["map"]}
        for name in MECHANISMS
    }
    full = maps["standard"]
    diagrams = {
        "omitted-by-optimised": (full - maps["optimised"], {"V"}),
        "omitted-by-efficient": (full - maps["efficient"], {"V", "K"}),
        "added-by-super": (maps["super"] - full, {"V"}),
    }
    others = len(MECHANISMS) - 1
    said: list[Statement] = [("modifications", others == 4, {"others": others})]
    for name, (changed, on) in reversed(diagrams.items()):
        changes = ", ".join(f"{block} on {place}" for block, place in sorted(changed)) or "none"
        said.insert(0, (name, {place for _, place in changed} == on, {"maps": changes}))
    return rows, said, {}


def _rows(count: str, seq_lens: Sequence[int], widths: Sequence[int]) -> list[_Row]:
    return [
        {"counted": count, "l": n, "d_m": d,
         **{name: counts.counter(COUNTS[count], name)(n, d, ONE_HEAD) for name in MECHANISMS}}
        for n in seq_lens
        for d in widths
    ]  # fmt: skip


def _less(rows: Sequence[_Row], name: str) -> float:
    """Return the percentage of the standard count that a mechanism saves in the last row."""
    share: float = 100 * (1 - rows[-1][name] / rows[-1]["standard"])
    return share


def by_width() -> Computed:
    """Return Figure 2: FLOPs by model width at length 64; at another length; counted exactly."""
    panels = {
        (count, n): _rows(count, [n], SIZES)
        for count, n in ((EQ24, STATED), (EQ24, OTHER), (EXACT, STATED))
    }
    facts = {"panels": [{"counted": count, "l": n} for count, n in panels], "h": ONE_HEAD}
    rows = [row for rows in panels.values() for row in rows]
    return rows, _said_of_widths(*panels.values()), facts


def _said_of_widths(
    printed: Sequence[_Row], other: Sequence[_Row], exact: Sequence[_Row]
) -> Iterator[Statement]:
    """Yield statements on Eq 24 at two lengths, and on the definitions' products."""
    eq24_is, products_are = (
        all(len({b[name] - a[name] for a, b in pairwise(rows)}) == 1 for name in MECHANISMS)
        for rows in (printed, exact)
    )
    words = {"eq24": "linear" if eq24_is else "not linear"}
    yield "growth", eq24_is, {**words, "products": "linear" if products_are else "quadratic"}
    first, second = printed[:2]
    wide = (second["d_m"] - first["d_m"]) * first["l"]
    slopes = [(second[name] - first[name]) // wide for name in ("standard", "super", "efficient")]
    yield "slopes", slopes == [15, 12, 9], {"slopes": ", ".join(f"{slope} l" for slope in slopes)}
    saved, elsewhere = (_less(rows, "efficient") for rows in (printed, other))
    by_super = _less(printed, "super")
    gaps = {"largest": LARGEST, "efficient": saved, "by_super": by_super}
    yield "saved", saved > 0 and by_super > 0, gaps
    same, exactly = (
        all(row["super"] == row["optimised"] for row in rows) for rows in (printed, exact)
    )
    words = {"eq24": "the same" if same else "not the same"}
    yield "optimised", same, {
        **words, "products": "the same" if exactly else "the same for l = d_m alone"
    }  # fmt: skip
    yield "lengths", counts.shape_is_free_of_length(), {
        "saved": saved, "elsewhere": elsewhere, "largest": LARGEST, "stated": STATED, "other": OTHER
    }  # fmt: skip


def heatmap() -> Computed:
    """Return Figure 3: the ratio of standard to Efficient Attention over length and width."""
    report = counts.heatmaps()
    full, efficient = (counts.counter(multiply_adds, name) for name in ("standard", "efficient"))
    rows = [
        {
            "l": cell["seq_len"], "d_m": cell["d_model"], "h": cell["num_heads"],
            "standard": cell["value_a"], "efficient": cell["value_b"], "ratio": cell["ratio"],
            "ratio_of_multiply_adds": full(*sizes) / efficient(*sizes),
        }
        for cell in map(asdict, report.records)
        for sizes in [(cell["seq_len"], cell["d_model"], ONE_HEAD)]
    ]  # fmt: skip
    mean, most = excess("mean"), max(excess("max").values())
    means, largest = list[Statement](), list[Statement]()
    for source, where in (("caption", "caption"), ("text_B2", "Sec B.2")):
        said = counts.quoted(source, "mean")
        up_to = max(counts.quoted(source, "max").values())
        gaps = {
            "where": where, "printed": ", ".join(f"{said[str(h)]} % (h = {h})" for h in PANELS),
            "ours": ", ".join(f"{mean[str(h)]:.2f} % (h = {h})" for h in PANELS),
        }  # fmt: skip
        agree = all(round(mean[str(h)]) == said[str(h)] for h in PANELS)
        means.append(("mean-excess", agree, gaps))
        bound = {"where": where, "printed": up_to, "ours": most}
        largest.append(("largest-excess", round(most) == up_to, bound))
    exact = counts.exact_excess()
    falls = exact["falls with the heads"]
    counted = {"most": exact["at most"], "less": "less" if falls else "not less"}
    means += [*largest, ("counted", exact["at most"] <= 67 and falls, counted)]
    return rows, means, {"summary": report.summary, "grid": counts.GRID}


def surfaces() -> Computed:
    """Return Figure 4: FLOPs over length and width, one head, a surface per mechanism."""
    printed, exact = (_rows(count, SIZES, SIZES) for count in (EQ24, EXACT))
    ordered = all(
        row["efficient"] < row["super"] == row["optimised"] < row["standard"] for row in printed
    )
    dearer = [row for row in exact if row["super"] > row["standard"]]
    ends = [row for row in printed if row["d_m"] == LARGEST]
    first, last = ends[0], ends[-1]
    more = sympy.factor(multiply_adds("super") - multiply_adds("standard"))
    fewer = [row["standard"] - row["efficient"] for row in (first, last)]
    shares = [_less([row], "efficient") for row in (first, last)]
    words = ("so", "equal") if ordered else ("not so", "not equal")
    of_order = {"so": words[0], "equal": words[1], "points": len(printed)}
    of_sequence = {"largest": LARGEST, "fewer": fewer, "first": first["l"], "last": last["l"]}
    of_counts = {"more": more, "dearer": len(dearer), "points": len(exact)}
    said: list[Statement] = [
        ("order", ordered, of_order),
        ("sequence", fewer[1] > fewer[0], {**of_sequence, "shares": shares}),
        ("order-counted", not dearer, of_counts),
    ]
    return [*printed, *exact], said, {"drawn": EQ24, "h": ONE_HEAD}


FIGURES = figures_of("000", {
    "1": ("The blocks of the four mechanisms", diagram),
    "2": ("FLOPs against model width", by_width),
    "3": ("FLOPs of standard over Efficient Attention", heatmap),
    "4": ("FLOPs over length and width, one head", surfaces),
})  # fmt: skip
