"""002's figures of the sublayers, from what each step of their definitions waits for."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnprof.papers.checks import formula, same_formula
from attnprof.papers.extractors.counts import (
    DOCUMENT,
    WAITS_FOR,
    counts,
    critical_path,
    definition,
    length,
    sequence,
    steps_of,
)
from attnprof.papers.regenerated import Described, Figure, FigureData
from attnprof.workload import Workload

#: Table 7's sizes: a token at the window's end, and the figure's own two heads.
WIDTH, WINDOW, HEADS = 128, 128, 2
NAMES = ("multiplications", "additions", "divisions", "exponentials")
#: The weights that Sections 4 and 5 put into each drawing, with their number of entries.
SQUARE = "d**2"
DRAWN = {
    "self_attention": {"W_Q": SQUARE, "W_K": SQUARE, "W_V": SQUARE, "W_out": SQUARE},
    "she": {"W_1 to W_l": "l*d**2", "W_adj": SQUARE, "W_out": SQUARE},
    "we": {"w_1 to w_l": "l*d", "W_adj": SQUARE, "W_out": SQUARE},
    "he": {"W_in": SQUARE, "w_1 to w_l": "l*d", "W_adj": SQUARE, "W_out": SQUARE},
    "me": {"w_1 to w_l": "l"},
}


def sublayer(name: str) -> FigureData:
    """A sublayer's steps for one more token, what each waits for, and its critical path."""
    rows = _rows(name)
    ours, printed = critical_path(name), _printed(name)
    described = [_weights(name)]
    if printed is not None:
        told = f"{_told(printed)} ({length(printed)})"
        described.append(
            Described("critical path", told, f"{_told(ours)} ({length(ours)})", printed == ours)
        )
    facts = {"critical path": _told(ours), "its steps": length(ours)}
    return FigureData(rows, tuple(described), facts)


def _rows(name: str) -> list[dict[str, Any]]:
    sizes = Workload(WINDOW, HEADS, WIDTH // HEADS, phase="decode")
    stages = {stage.name: stage for stage in definition(name, sizes)}
    rows: list[dict[str, Any]] = []
    ends: dict[str, int] = {}
    for step, stage in stages.items():
        waits = [other for other in WAITS_FOR.get(step, ()) if other in ends]
        steps = steps_of(stage.cost)
        ends[step] = len(steps) + max((ends[other] for other in waits), default=0)
        counted = zip(NAMES, map(int, counts(stage.cost).values()), strict=True)
        rows.append(
            {"step": step, "waits for": " + ".join(waits) or "input row",
             "operations": ";".join(steps), "on critical path": False, **dict(counted)}
        )  # fmt: skip
    _mark(rows, ends)
    return rows


def _weights(name: str) -> Described:
    """The entries of the weights drawn, against the parameters of our definition."""
    drawn, ours = " + ".join(DRAWN[name].values()), sequence(name)["params"]
    printed = formula(drawn)
    return Described(
        "weights", f"{', '.join(DRAWN[name])}: {printed}", f"{ours} parameters",
        same_formula(printed, ours),
    )  # fmt: skip


def _mark(rows: list[dict[str, Any]], ends: dict[str, int]) -> None:
    """Walk back from the step that ends last, each time to the latest it waited for."""
    by_step = {row["step"]: row for row in rows}
    step = max(ends, key=lambda name: ends[name])
    while step in by_step:
        by_step[step]["on critical path"] = True
        before = [name for name in by_step[step]["waits for"].split(" + ") if name in ends]
        step = max(reversed(before), key=lambda name: ends[name], default="")


def _printed(name: str) -> str | None:
    """The critical path that Section 7 gives; it gives none for HE and WE."""
    rows = DOCUMENT.rows("critical_paths")
    told = {row["sublayer"]: row["steps_in_order"] for row in rows if row["printed"] == "yes"}
    return told.get(name)


def _told(path: str) -> str:
    return path.replace(";", "-")


FIGURES = {
    "2": Figure("The self-attention sublayer, one more token", partial(sublayer, "self_attention")),
    "3": Figure("SHE, one more token", partial(sublayer, "she")),
    "4": Figure("WE, one more token", partial(sublayer, "we")),
    "5": Figure("HE, one more token", partial(sublayer, "he")),
    "6": Figure("ME, one more token", partial(sublayer, "me")),
}
