"""000: parameters of one attention layer, Tables 1, 3, 5, 6, 8, 9 and 10, and Table 7's totals."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnprof.papers.better_attention.formulas import implied_seq_len, parameters
from attnprof.papers.better_attention.values import (
    EXPERIMENTS,
    IMAGE_SIDE,
    MECHANISMS,
    PATCH_SIDE,
    imagenet_patches,
    rows,
    value,
)
from attnprof.papers.checks import Check, same_formula
from attnprof.papers.documents import number

#: How claims name a table.
PLACES = {"5": "T5_MNIST", "6": "T6_CIFAR100", "8": "T8_IMDB", "9": "T9_Amazon", "10": "T10_NMT"}


def expected(row: dict[str, str]) -> int:
    """A layer's parameters at the row's number of heads and the length that the text states.

    For ImageNet, where it states two, these are ViT-B/16's tokens: patches and a class token.
    """
    imagenet = row["dataset"] == "ImageNet"
    length = imagenet_patches() + 1 if imagenet else EXPERIMENTS[row["dataset"]].seq_len
    return parameters(row["attention"], int(row["d_m"]), length or 1, int(row["h"] or 1))


def _of(table: str, mechanism: str) -> list[dict[str, str]]:
    return [row for row in rows(table) if row["attention"] == mechanism]


def _counted(table: str, mechanism: str) -> dict[str, int]:
    return {f"h={row['h']}": expected(row) for row in _of(table, mechanism)}


def _why(table: str, mechanism: str, published: Any, ours: Any) -> str:
    experiment = EXPERIMENTS[rows(table)[0]["dataset"]]
    heads = next(name for name in ours if published.get(name) != ours[name])
    said, found = published.get(heads) or 0, ours[heads]
    length = implied_seq_len(said, experiment.d_model) if mechanism == "super" else None
    if length is None:
        return f"a layer of width {experiment.d_model} has {found:,}"
    token = ": its patches and a class token" if length == (experiment.seq_len or 0) + 1 else ""
    return (
        f"the stated context length {experiment.seq_len} gives {found:,}; "
        f"{said:,} needs l = {length}{token}"
    )


def _layer(table: str, place: str, mechanism: str) -> Check:
    return Check(
        f"000-PAR-{place}-{mechanism}",
        {f"h={row['h']}": int(row["params"]) for row in _of(table, mechanism)},
        partial(_counted, table, mechanism),
        how="every map of the definition with its bias, at each printed number of heads",
        why=partial(_why, table, mechanism),
        tables=(table,),
    )


def abbreviated(count: int) -> int:
    """Table 1's way: cut off after whole thousands, from a million on after hundredths of it."""
    unit = 10_000 if count >= 1_000_000 else 1_000
    return count // unit * unit


def _table_1() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows("1"):
        found.setdefault(row["dataset"], {})[row["attention"]] = abbreviated(expected(row))
    return found


def _printed_1() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows("1"):
        found.setdefault(row["dataset"], {})[row["attention"]] = int(row["params"])
    return found


def _shares() -> dict[str, str]:
    from fractions import Fraction

    full = parameters("standard", EXPERIMENTS["NMT"].d_model)
    counts = {name: parameters(name, EXPERIMENTS["NMT"].d_model) for name in MECHANISMS[1:3]}
    return {name: str(Fraction(count, full)) for name, count in counts.items()}


def _patches_why(_: Any, ours: Any) -> str:
    stated = EXPERIMENTS["ImageNet"].seq_len or 0
    counts = [parameters("super", EXPERIMENTS["ImageNet"].d_model, n) for n in (stated, ours)]
    printed = value("1", "params", "super", dataset="ImageNet")
    return (
        f"App B.3 cuts {IMAGE_SIDE} x {IMAGE_SIDE} pictures into {PATCH_SIDE} x {PATCH_SIDE} "
        f"patches, {ours} of them. With length {stated} Super's layer had {counts[0]:,} "
        f"parameters, with {ours} it has {counts[1]:,}: Table 1 prints {printed / 1e6:.2f}M"
    )


CHECKS = [
    *(
        _layer(table, place, mechanism)
        for table, place in PLACES.items()
        for mechanism in MECHANISMS
        if _of(table, mechanism)
    ),
    Check(
        "000-PAR-T1-abbrev",
        _printed_1(),
        _table_1,
        how="layer counts cut off after thousands, from a million on after hundredths of a million",
        note="Table 1 cuts off (49,536 is 49K) where Table 3 rounds; ImageNet's 1.22M needs the "
        "class token beside the 196 patches",
        tables=("1",),
    ),
    Check(
        "000-PAR-T3-abbrev",
        {row["attention"]: number(row["params"]) for row in rows("3")},
        lambda: {row["attention"]: round(expected(row), -5) for row in rows("3")},
        how="layer counts rounded to tenths of a million",
        tables=("3",),
    ),
    Check(
        "000-CTX-ImageNet",
        EXPERIMENTS["ImageNet"].seq_len,
        imagenet_patches,
        how="picture side over patch side, squared (App B.3)",
        why=_patches_why,
        tables=("1",),
    ),
    Check(
        "000-CAP-T3T10",
        {"optimised": "1/2", "efficient": "3/4"},
        _shares,
        how="parameters of a layer over those of standard attention, width 1024",
        agree=same_formula,
        why="the captions name the two in the other order: Optimised keeps 3/4, Efficient 1/2",
        tables=("3", "10"),
    ),
]
