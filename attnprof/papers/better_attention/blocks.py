"""The blocks of 000's Figure 1, from what our definitions of the four mechanisms compute."""

from __future__ import annotations

from attnprof import registry
from attnprof.papers.better_attention.formulas import definition
from attnprof.papers.better_attention.values import MECHANISMS
from attnprof.papers.regenerated import Described, FigureData

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
#: Steps that are part of another block.
WITHIN = {"exponentials", "row sums"}


def blocks(mechanism: str) -> list[dict[str, str]]:
    """A mechanism's blocks in order; inputs that no map splits into heads are sliced."""
    found = [
        _block(mechanism, "Slice", letter.upper())
        for letter in "qkv"
        if letter not in registry.get(mechanism).projections
    ]
    for stage in definition(mechanism):
        if stage.name in WITHIN:
            continue
        if stage.name == "output":
            found.append(_block(mechanism, "Concat", "heads"))
        found.append(_block(mechanism, *STEPS[stage.name]))
    return found


def _block(mechanism: str, block: str, on: str, weights: str = "") -> dict[str, str]:
    return {"mechanism": mechanism, "block": block, "on": on, "map": weights}


def _maps(mechanism: str) -> set[tuple[str, str]]:
    """Blocks with weights, and what they work on."""
    return {(row["block"], row["on"]) for row in blocks(mechanism) if row["map"]}


def _told(maps: set[tuple[str, str]]) -> str:
    return ", ".join(f"{block} on {on}" for block, on in sorted(maps)) or "none"


def diagram() -> FigureData:
    """Figure 1: the blocks of all four mechanisms."""
    maps = {name: _maps(name) for name in MECHANISMS}
    without = {name: maps["standard"] - maps[name] for name in MECHANISMS}
    added = maps["super"] - maps["standard"]
    described = (
        _item("maps that Optimised omits (b)", "of the values", without["optimised"], {"V"}),
        _item("maps that Efficient omits (c)", "of the values and keys", without["efficient"],
              {"V", "K"}),
        _item("map that Super adds (d)", "a Linear* before the values meet the scores", added,
              {"V"}),
        Described(
            "proposed modifications", "four, (b) to (d)", f"{len(MECHANISMS) - 1}",
            len(MECHANISMS) - 1 == 4,
        ),
    )  # fmt: skip
    return FigureData([row for name in MECHANISMS for row in blocks(name)], described)


def _item(what: str, printed: str, found: set[tuple[str, str]], on: set[str]) -> Described:
    return Described(what, printed, _told(found), {place for _, place in found} == on)
