"""000: parameters of one attention layer, Tables 1, 3, 5, 6, 8, 9 and 10, and Table 7's totals."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import EXPERIMENTS, MECHANISMS, parameters, rows, value
from attnprof.papers.checks import NOT_REPRODUCIBLE, Check, Checks, rounded
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


def _by_heads(dataset: str, table: str, mechanism: str) -> Check:
    width, _, length = EXPERIMENTS[dataset]

    def why(published: Any, ours: Any) -> str:
        heads = next(name for name in ours if published.get(name) != ours[name])
        said, found = published.get(heads) or 0, ours[heads]
        needed = values.implied_seq_len(said, width) if mechanism == "super" else None
        if needed is None:
            return f"a layer of width {width} has {found:,}"
        token = ": its patches and a class token" if needed == (length or 0) + 1 else ""
        return (
            f"the stated context length {length} gives {found:,}; "
            f"{said:,} needs l = {needed}{token}"
        )

    return Check(
        f"000-PAR-T{table}_{dataset}-{mechanism}",
        {f"h={row['h']}": int(row["params"]) for row in rows(table, mechanism)},
        lambda: {f"h={row['h']}": expected(row) for row in rows(table, mechanism)},
        how="every map of the definition with its bias, at each printed number of heads",
        why=why,
    )


def abbreviated(count: int) -> int:
    """Table 1's way: cut off after whole thousands, from a million on after hundredths of it."""
    unit = 10_000 if count >= 1_000_000 else 1_000
    return count // unit * unit


def _table_1(count: Callable[[dict[str, str]], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows("1"):
        found.setdefault(row["dataset"], {})[row["attention"]] = count(row)
    return found


def _patches_why(_: Any, ours: Any) -> str:
    width, _, stated = EXPERIMENTS["ImageNet"]
    side, patch = values.IMAGE_SIDE, values.PATCH_SIDE
    counts = [parameters("super", width, length) for length in (stated or 0, ours)]
    printed = value("1", "params", "super", dataset="ImageNet")
    return (
        f"App B.3 cuts {side} x {side} pictures into {patch} x {patch} "
        f"patches, {ours} of them. With length {stated} Super's layer had {counts[0]:,} "
        f"parameters, with {ours} it has {counts[1]:,}: Table 1 prints {printed / 1e6:.2f}M"
    )


CHECKS = Checks([
    *(
        _by_heads(dataset, table, mechanism)
        for dataset, table in values.BY_HEADS.items()
        for mechanism in MECHANISMS
        if rows(table, mechanism)
    ),
    Check(
        "000-PAR-T1-abbrev",
        _table_1(lambda row: int(row["params"])),
        lambda: _table_1(lambda row: abbreviated(expected(row))),
        how="layer counts cut off after thousands, from a million on after hundredths of a million",
        note="Table 1 cuts off (49,536 is 49K) where Table 3 rounds; ImageNet's 1.22M needs the "
        "class token beside the 196 patches",
    ),
    Check(
        "000-PAR-T3-abbrev",
        {row["attention"]: number(row["params"]) for row in rows("3")},
        lambda: {row["attention"]: round(expected(row), -5) for row in rows("3")},
        how="layer counts rounded to tenths of a million",
    ),
    Check(
        "000-CTX-ImageNet",
        EXPERIMENTS["ImageNet"].seq_len,
        lambda: values.IMAGENET_PATCHES,
        how="picture side over patch side, squared (App B.3)",
        why=_patches_why,
        tables=("1",),
    ),
])  # fmt: skip


@CHECKS.answers(
    "000-CAP-T3T10",
    {"optimised": "1/2", "efficient": "3/4"},
    how="parameters of a layer over those of standard attention, width 1024",
    why="the captions name the two in the other order: Optimised keeps 3/4, Efficient 1/2",
)
def _shares() -> dict[str, str]:
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


def _totals_why(_: Any, ours: dict[str, float]) -> str:
    found = fitting_heads()
    told = (
        f"a classifier with one hidden layer of {', '.join(map(str, found))} units gives all four "
        "(cut off, as in Table 1)"
        if found
        else "no classifier with one hidden layer gives all four"
    )
    return (
        "the classifier is not described. ViT-B/16 as changed in App B.3 (8 x 8 patches of 112 x "
        f"112, MLP of {MLP_WIDTH}, one linear classifier) has {ours['standard']:.2f}M with "
        f"standard attention; {told}"
    )


@CHECKS.answers(
    "000-TABLE7",
    _printed_totals(),
    how="parameters of ViT-B/16 with the changes that App B.3 and Table 7 name, in millions",
    agree=rounded(2),
    why=_totals_why,
    otherwise=NOT_REPRODUCIBLE,
)
def totals() -> dict[str, float]:
    """Millions of parameters of ViT-B/16 with the changes that App B.3 and Table 7 name."""
    return {name: (rest + head(width)) / 1e6 for name, width, rest in _models()}


@CHECKS.answers(
    "000-TABLE7-WA",
    round((value("7", "params", "super") - value("7", "params", "efficient")) / 1e6, 2),
    how="nine maps over 197 tokens with their biases, in millions",
    agree=rounded(2),
    note="a context of 256, as Sec 4.1 has it, would add 0.59 M",
)
def _mixing() -> float:
    layers = int(value("7", "att_layers", "super"))
    extra = parameters("super", 804, values.IMAGENET_PATCHES + 1) - parameters("efficient", 804)
    return layers * extra / 1e6
