"""000: parameters of one attention layer, Tables 1, 3, 5, 6, 8, 9 and 10, and Table 7's totals."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import EXPERIMENTS, MECHANISMS, parameters, rows, value
from attnprof.papers.checks import Facts, Ours, Printed
from attnprof.papers.documents import number

#: ViT-B/16's fixed sizes, and hidden widths of its classifier that are tried as an explanation.
COLOURS, CLASSES, MLP_WIDTH = 3, 1000, 3072
WIDTHS = range(500, 4001)


def expected(row: dict[str, str]) -> int:
    """A layer's parameters at the row's number of heads and the length that the text states.

    For ImageNet, where it states two, these are ViT-B/16's tokens: patches and a class token.
    """
    imagenet = row["dataset"] == "ImageNet"
    length = values.IMAGENET_PATCHES + 1 if imagenet else EXPERIMENTS[row["dataset"]].seq_len
    return parameters(row["attention"], int(row["d_m"]), length or 1, int(row["h"] or 1))


def counted_by_heads(table: str, mechanism: str) -> dict[str, int]:
    """A layer's parameters at each of a table's head counts."""
    return {f"h={row['h']}": expected(row) for row in rows(table, mechanism)}


def stated_length(dataset: str, mechanism: str, published: Any, ours: Any) -> dict[str, str]:
    """What a layer has where a table prints another number, and the length that this needs."""
    width, _, length = EXPERIMENTS[dataset]
    heads = next(name for name in ours if published.get(name) != ours[name])
    said, count = published.get(heads) or 0, ours[heads]
    needed = values.implied_seq_len(said, width) if mechanism == "super" else None
    if needed is None:
        return {"told": f"a layer of width {width} has {count:,}"}
    token = ": its patches and a class token" if needed == (length or 0) + 1 else ""
    stated = f"the stated context length {length} gives {count:,}"
    return {"told": f"{stated}; {said:,} needs l = {needed}{token}"}


def abbreviated(count: int) -> int:
    """Table 1's way: cut off after whole thousands, from a million on after hundredths of it."""
    unit = 10_000 if count >= 1_000_000 else 1_000
    return count // unit * unit


def _table_1(count: Callable[[dict[str, str]], int]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for row in rows("1"):
        table.setdefault(row["dataset"], {})[row["attention"]] = count(row)
    return table


def patches(_: Any, ours: Any) -> dict[str, Any]:
    """Super's parameters on ImageNet at the stated length and at the number of patches."""
    width, _heads, stated = EXPERIMENTS["ImageNet"]
    stated_count, count = (parameters("super", width, length) for length in (stated or 0, ours))
    printed = value("1", "params", "super", dataset="ImageNet") / 1e6
    return {"stated": stated, "stated_count": stated_count, "count": count, "printed": printed}


def shares() -> dict[str, str]:
    """Parameters of a layer over those of standard attention, by mechanism."""
    counts = {name: parameters(name, EXPERIMENTS["NMT"].d_model) for name in MECHANISMS[:3]}
    full = counts.pop("standard")
    return {name: str(Fraction(count, full)) for name, count in counts.items()}


def encoder(attention: str, width: int, layers: int) -> int:
    """Parameters of ViT-B/16's encoder: patches, class token, positions, blocks, last norm."""
    tokens = values.IMAGENET_PATCHES + 1
    norms, mlp = 4 * width, 2 * MLP_WIDTH * width + MLP_WIDTH + width
    block = parameters(attention, width, tokens) + norms + mlp
    patches = (COLOURS * values.PATCH_SIDE**2 + 1) * width
    return layers * block + patches + (1 + tokens) * width + 2 * width


def head(width: int, hidden: int | None = None) -> int:
    """Parameters of the classifier, with a hidden layer or without."""
    if hidden is None:
        return (width + 1) * CLASSES
    return (width + 1) * hidden + (hidden + 1) * CLASSES


def _models() -> list[tuple[str, int, int]]:
    """Mechanism, width and parameters of the encoder of each of Table 7's models."""
    return [
        (row["attention"], width, encoder(row["attention"], width, int(row["att_layers"])))
        for row in rows("7")
        for width in [int(row["d_m"])]
    ]


def _printed_totals() -> dict[str, float]:
    return {row["attention"]: number(row["params"]) / 1e6 for row in rows("7")}


def fitting_heads() -> list[int]:
    """Hidden widths for which all four totals, cut off after two decimals, are the printed ones."""
    said = {name: round(100 * printed) for name, printed in _printed_totals().items()}
    models = _models()
    return [
        hidden
        for hidden in WIDTHS
        if all((rest + head(w, hidden)) // 10_000 == said[name] for name, w, rest in models)
    ]


def classifier(*_: Any) -> dict[str, Any]:
    """Which classifier with a hidden layer explains all totals of Table 7."""
    fitting = fitting_heads()
    sentence = "no classifier with one hidden layer gives all four"
    if fitting:
        units = ", ".join(map(str, fitting))
        sentence = (
            f"a classifier with one hidden layer of {units} units gives all four (cut off, as in "
            "Table 1)"
        )
    return {"mlp": MLP_WIDTH, "told": sentence}


def totals() -> dict[str, float]:
    """Millions of parameters of ViT-B/16 with the changes that App B.3 and Table 7 name."""
    return {name: (rest + head(width)) / 1e6 for name, width, rest in _models()}


def mixing() -> float:
    """Millions of parameters of Table 7's maps that mix tokens."""
    layers = int(value("7", "att_layers", "super"))
    extra = parameters("super", 804, values.IMAGENET_PATCHES + 1) - parameters("efficient", 804)
    return layers * extra / 1e6


#: Claims of a layer's parameters by head count: dataset, table and mechanism.
LAYERS = {
    f"000-PAR-T{table}_{dataset}-{mechanism}": (dataset, table, mechanism)
    for dataset, table in values.BY_HEADS.items()
    for mechanism in MECHANISMS
    if rows(table, mechanism)
}
PRINTED: Printed = {
    **{
        claim: {f"h={row['h']}": int(row["params"]) for row in rows(table, mechanism)}
        for claim, (_, table, mechanism) in LAYERS.items()
    },
    "000-PAR-T1-abbrev": _table_1(lambda row: int(row["params"])),
    "000-PAR-T3-abbrev": {row["attention"]: number(row["params"]) for row in rows("3")},
    "000-CTX-ImageNet": EXPERIMENTS["ImageNet"].seq_len,
    "000-TABLE7": _printed_totals(),
    "000-TABLE7-WA": round(
        (value("7", "params", "super") - value("7", "params", "efficient")) / 1e6, 2
    ),
}
OURS: Ours = {
    **{claim: partial(counted_by_heads, *its[1:]) for claim, its in LAYERS.items()},
    "000-PAR-T1-abbrev": lambda: _table_1(lambda row: abbreviated(expected(row))),
    "000-PAR-T3-abbrev": lambda: {row["attention"]: round(expected(row), -5) for row in rows("3")},
    "000-CTX-ImageNet": lambda: values.IMAGENET_PATCHES,
    "000-CAP-T3T10": shares,
    "000-TABLE7": totals,
    "000-TABLE7-WA": mixing,
}
FACTS: Facts = {
    **{claim: partial(stated_length, its[0], its[2]) for claim, its in LAYERS.items()},
    "000-CTX-ImageNet": patches,
    "000-TABLE7": classifier,
}
