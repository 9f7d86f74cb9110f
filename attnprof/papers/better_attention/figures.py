"""The data of 000's figures: what Eq 24 gives, beside what the definitions count."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import sympy

from attnprof import registry
from attnprof.papers.better_attention import checks_formulas, values
from attnprof.papers.better_attention.values import MECHANISMS, counter, eq24, multiply_adds
from attnprof.papers.regenerated import Described, FigureData, PaperFigure

BLOCK = ("mechanism", "block", "on", "map")
#: By the definitions' names of their steps: the figure's block, what it works on, its map's shape.
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


def blocks(mechanism: str) -> list[dict[str, str]]:
    """A mechanism's blocks in order; inputs that no map splits into heads are sliced."""
    projected = registry.get(mechanism).projections
    found = [("Slice", letter.upper(), "") for letter in "qkv" if letter not in projected]
    for stage in values.definition(mechanism):
        if stage.name == "output":
            found.append(("Concat", "heads", ""))
        if stage.name in STEPS:  # exponentials and row sums are part of another block
            found.append(STEPS[stage.name])
    return [dict(zip(BLOCK, (mechanism, *block), strict=True)) for block in found]


def diagram() -> FigureData:
    """Figure 1: the blocks of all four mechanisms."""
    rows = [row for name in MECHANISMS for row in blocks(name)]
    maps = {
        name: {(r["block"], r["on"]) for r in rows if r["mechanism"] == name and r["map"]}
        for name in MECHANISMS
    }
    full = maps["standard"]
    described = [
        Described(
            what, printed, ", ".join(f"{block} on {on}" for block, on in sorted(found)) or "none",
            {place for _, place in found} == on,
        )
        for what, printed, found, on in (
            ("maps that Optimised omits (b)", "of the values", full - maps["optimised"], {"V"}),
            ("maps that Efficient omits (c)", "of the values and keys", full - maps["efficient"],
             {"V", "K"}),
            ("map that Super adds (d)", "a Linear* before the values meet the scores",
             maps["super"] - full, {"V"}),
        )
    ]  # fmt: skip
    others = len(MECHANISMS) - 1
    described.append(
        Described("proposed modifications", "four, (b) to (d)", f"{others}", others == 4)
    )
    return FigureData(rows, described)


_Row = dict[str, Any]
#: How a row's numbers are counted.
COUNTS: dict[str, Callable[[str], Any]] = {
    "Eq 24": eq24,
    "multiplications and additions": multiply_adds,
}
EQ24, EXACT = COUNTS
#: Figure 2's length, and another to hold its caption against; Figure 4's head count for both.
STATED, OTHER, ONE_HEAD = 64, 1024, 1
STEP, LARGEST = 64, 1024
SIZES = range(STEP, LARGEST + 1, STEP)


def _rows(count: str, seq_lens: Sequence[int], widths: Sequence[int]) -> list[_Row]:
    return [
        {"counted": count, "l": n, "d_m": d,
         **{name: counter(COUNTS[count], name)(n, d, ONE_HEAD) for name in MECHANISMS}}
        for n in seq_lens
        for d in widths
    ]  # fmt: skip


def _less(rows: Sequence[_Row], name: str) -> float:
    """The share of standard's count that a mechanism saves in the last row, in percent."""
    share: float = 100 * (1 - rows[-1][name] / rows[-1]["standard"])
    return share


def by_width() -> FigureData:
    """Figure 2: FLOPs against model width at length 64; at another length; counted exactly."""
    panels = {
        (count, n): _rows(count, [n], SIZES)
        for count, n in ((EQ24, STATED), (EQ24, OTHER), (EXACT, STATED))
    }
    facts = {"panels": [{"counted": count, "l": n} for count, n in panels], "h": ONE_HEAD}
    rows = [row for rows in panels.values() for row in rows]
    return FigureData(rows, tuple(_said_of_widths(*panels.values())), facts)


def _said_of_widths(
    printed: Sequence[_Row], other: Sequence[_Row], exact: Sequence[_Row]
) -> Iterator[Described]:
    """Of Eq 24 at two lengths, and of the definitions' products."""
    eq24_is, products_are = (
        all(len({b[name] - a[name] for a, b in pairwise(rows)}) == 1 for name in MECHANISMS)
        for rows in (printed, exact)
    )
    yield Described(
        "growth with d_m", "linear for all mechanisms",
        f"Eq 24: {'linear' if eq24_is else 'not linear'}; the definitions' products: "
        f"{'linear' if products_are else 'quadratic'}",
        eq24_is,
    )  # fmt: skip
    first, second = printed[:2]
    wide = (second["d_m"] - first["d_m"]) * first["l"]
    slopes = [(second[name] - first[name]) // wide for name in ("standard", "super", "efficient")]
    yield Described(
        "slopes, standard, Super and Efficient", "15 l, 12 l, 9 l",
        ", ".join(f"{slope} l" for slope in slopes), slopes == [15, 12, 9],
    )  # fmt: skip
    saved, elsewhere = (_less(rows, "efficient") for rows in (printed, other))
    by_super = _less(printed, "super")
    yield Described(
        "saved against standard attention", "significantly fewer FLOPs",
        f"at d_m = {LARGEST}: Efficient {saved:.1f} %, Super {by_super:.1f} %",
        saved > 0 and by_super > 0,
    )  # fmt: skip
    same, exactly = (
        all(row["super"] == row["optimised"] for row in rows) for rows in (printed, exact)
    )
    yield Described(
        "Optimised, not drawn", "exactly as Super",
        f"Eq 24: {'the same' if same else 'not the same'}; the definitions' products: "
        f"{'the same' if exactly else 'the same for l = d_m alone'}",
        same,
    )  # fmt: skip
    yield Described(
        "other lengths", "only the scale of the y-axis changes",
        f"Efficient saves {saved:.1f} % at d_m = {LARGEST} for l = {STATED}, "
        f"{elsewhere:.1f} % for l = {OTHER}",
        checks_formulas.shape_is_free_of_length(),
    )  # fmt: skip


def heatmap() -> FigureData:
    """Figure 3: the ratio of standard to Efficient Attention over length and width."""
    report = checks_formulas.heatmaps()
    full, efficient = (counter(multiply_adds, name) for name in ("standard", "efficient"))
    rows = [
        {
            "l": cell["seq_len"], "d_m": cell["d_model"], "h": cell["num_heads"],
            "standard": cell["value_a"], "efficient": cell["value_b"], "ratio": cell["ratio"],
            "ratio_of_multiply_adds": full(*sizes) / efficient(*sizes),
        }
        for cell in map(asdict, report.records)
        for sizes in [(cell["seq_len"], cell["d_model"], ONE_HEAD)]
    ]  # fmt: skip
    mean, most = checks_formulas.excess("mean"), max(checks_formulas.excess("max").values())
    means, largest = [], []
    for source, where in (("caption", "caption"), ("text_B2", "Sec B.2")):
        said, up_to = (
            checks_formulas.quoted(source, "mean"),
            max(checks_formulas.quoted(source, "max").values()),
        )
        means.append(Described(
            f"mean excess by heads, {where}",
            ", ".join(f"{said[str(h)]} % (h = {h})" for h in checks_formulas.PANELS),
            ", ".join(f"{mean[str(h)]:.2f} % (h = {h})" for h in checks_formulas.PANELS),
            all(round(mean[str(h)]) == said[str(h)] for h in checks_formulas.PANELS),
        ))  # fmt: skip
        largest.append(Described(
            f"largest excess, {where}", f"up to {up_to} %", f"{most:.2f} %", round(most) == up_to
        ))  # fmt: skip
    exact = checks_formulas.exact_excess()
    counted = Described(
        "counted from the definitions", "at most 67 %, less with more heads",
        f"at most {exact['at most']:.0f} %, "
        f"{'less' if exact['falls with the heads'] else 'not less'} with more heads",
        exact["at most"] <= 67 and exact["falls with the heads"],
    )  # fmt: skip
    described = (*means, *largest, counted)
    return FigureData(rows, described, {"summary": report.summary, "grid": checks_formulas.GRID})


def surfaces() -> FigureData:
    """Figure 4: FLOPs over length and width, one head, a surface a mechanism."""
    printed, exact = (_rows(count, SIZES, SIZES) for count in (EQ24, EXACT))
    ordered = all(
        row["efficient"] < row["super"] == row["optimised"] < row["standard"] for row in printed
    )
    dearer = [row for row in exact if row["super"] > row["standard"]]
    ends = [row for row in printed if row["d_m"] == LARGEST]
    first, last = ends[0], ends[-1]
    more = sympy.factor(multiply_adds("super") - multiply_adds("standard"))
    fewer = [row["standard"] - row["efficient"] for row in (first, last)]
    described = (
        Described(
            "order", "Efficient, then Super and Optimised, below standard",
            f"{'so' if ordered else 'not so'} in all {len(printed)} points, Super and Optimised "
            f"{'equal' if ordered else 'not equal'}",
            ordered,
        ),
        Described(
            "as the sequence grows", "fewer FLOPs",
            f"Efficient at d_m = {LARGEST}: {fewer[0]:,} fewer at l = {first['l']}, {fewer[1]:,} "
            f"fewer at l = {last['l']}; as a share {_less([first], 'efficient'):.1f} % and "
            f"{_less([last], 'efficient'):.1f} %",
            fewer[1] > fewer[0],
        ),
        Described(
            "the order, counted from the definitions", "Super below standard",
            f"Super takes {more} more: above standard in {len(dearer)} of "
            f"{len(exact)} points",
            not dearer,
        ),
    )  # fmt: skip
    return FigureData([*printed, *exact], described, {"drawn": EQ24, "h": ONE_HEAD})


FIGURES = {
    "1": PaperFigure("The blocks of the four mechanisms", diagram),
    "2": PaperFigure("FLOPs against model width", by_width),
    "3": PaperFigure("FLOPs of standard over Efficient Attention", heatmap),
    "4": PaperFigure("FLOPs over length and width, one head", surfaces),
}
