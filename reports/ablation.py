"""What single guesses carry: switched off, which modules of public packages no longer run?

Every target of ``foreign_modules.py`` is asked for by its name alone. Written down is whether the
first guess of arguments and inputs runs, the calls of a model that uses the module, or a repair,
and which functions proposed that repair. Each such function is then switched off for the targets
that it served. In the environment that ``foreign_modules.py`` makes::

    FOREIGN_MODULES=FOLDER python reports/ablation.py            # targets that are not in the CSV
    FOREIGN_MODULES=FOLDER python reports/ablation.py torch.nn   # these again
    FOREIGN_MODULES=FOLDER python reports/ablation.py --speed    # layers that only save time

Layers of a run that only save time are switched off for derivations of ``tests/frozen``, whose
formulas, domains and notes have to stay as they are.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreign_modules import TARGETS, environment
from row_files import apart, earlier, save

HERE = Path(__file__).parent
REQUEST = HERE.parent / "attnprof" / "trace" / "request"
#: Methods of ``Failed``, and functions that ``repairs`` calls, which propose repairs.
METHODS = (
    "_parts", "_named", "_defaults", "_pairs", "_missing", "_classes", "_unset", "_layouts",
    "_pictures", "_numbers", "_fixed", "_twos",
)  # fmt: skip
OF_LINES = ("unflagged", "sized", "of_channels", "with_class")
OF_SHAPES = ("wider", "beside")
#: Rows of layers that only save time.
SPEEDS = HERE / "ablation_speed.csv"
#: Rows of targets.
GUESSES = HERE / "ablation.csv"
#: Seconds that a target may take on a busy machine.
LIMIT_S = 1800


@dataclass(frozen=True)
class Row:
    """How a target comes to run: by the first guess, a model's call or a repair; or not at all.

    ``proposed_by`` names what proposed the repair; ``off`` what was switched off, if anything.
    """

    target: str
    off: str
    found_by: str
    proposed_by: str
    tries: int
    seconds: float
    inputs: str


def row_of(target: str, off: str) -> Row:
    """Return how one target comes to run with a proposing function switched off."""
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import target_of
    from attnprof.trace.request.target import Target

    proposals, tries = watched(off)
    name, *inputs = target.split(" --input ")
    start = time.process_time()
    try:
        found = target_of(name, None, inputs)
        stage = "refused" if found.advice != Target.advice else "first guess"
        spelled = "; ".join(found.spelled_inputs)
        if any("calls it with" in note for note in found.notes):
            stage = "model's call"
    except AttnprofError as error:
        stage, spelled = "refused", str(error).replace("\n", " ")[:200]
    by: dict[str, None] = {}
    if stage == "first guess" and tries and tries[-1].repaired:
        stage = "repair"
        change = tries[-1].seen[-1]
        items = [*change.args.items(), *change.inputs.items()]
        by = dict.fromkeys(proposals.get((k, str(v)), "repairs") for k, v in items)
    count = sum(len(each.seen) for each in tries)
    return Row(target, off, stage, " ".join(by), count, round(time.process_time() - start, 1),
               spelled)  # fmt: skip


def watched(off: str) -> tuple[dict[Any, str], list[Any]]:
    """Patch the proposing functions of this process: what proposed what, and the searches."""
    from attnprof.trace.request import lines, repairs
    from attnprof.trace.request.tries import Tries

    proposals: dict[Any, str] = {}
    searches: list[Any] = []

    def watching(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def watch(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for repair in () if name == off else plain(*args, **kwargs):
                for key, value in (*repair.args.items(), *repair.inputs.items()):
                    proposals.setdefault((key, str(value)), name)
                yield repair

        setattr(owner, name, watch)

    for owner, names in ((repairs.Failed, METHODS), (lines, OF_LINES), (repairs, OF_SHAPES)):
        for name in names:
            if hasattr(owner, name):
                watching(owner, name)
    search = Tries.until_one_runs

    def until_one_runs(self: Any, first: Any, error: Exception) -> Any:
        searches.append(self)
        self.repaired = False
        found = search(self, first, error)
        self.repaired = found is not None
        return found

    Tries.until_one_runs = until_one_runs
    return proposals, searches


@dataclass(frozen=True)
class Speed:
    """Processor seconds of a derivation in both phases, with a layer and without it.

    ``same``: every formula, domain and note is the same.
    """

    layer: str
    lines: int
    derived: str
    with_s: float
    without_s: float
    same: bool


#: Layers that only save time, with their lines: those that are here can be switched off.
LAYERS = {"remembered: results of operations by layouts seen before": 150}
DERIVED = ("we", "Llama", "GPT2", "Grouped", "Windows", "Cross", "recurrence", "chunked")


def timed(derived: str, layer: str) -> tuple[float, str]:
    """Return the processor seconds of a derivation without a layer, and what it says."""
    from attnprof.trace.run import remembered
    from tests.frozen.derivations import lines

    if layer.startswith("remembered"):
        remembered._is_made_again = lambda _: False  # noqa: SLF001 - a switch of this report's
    start = time.process_time()
    told = lines(derived)
    return time.process_time() - start, told


def speed() -> Iterator[Speed]:
    """Yield a row for each layer and derivation, each run in a process of its own."""
    import derived_shapes  # noqa: F401 - once for all processes

    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for layer, derived in ((layer, derived) for layer in LAYERS for derived in DERIVED):
            ways = [(derived, ""), (derived, layer)]
            (before, told), (after, without) = pool.starmap(timed, ways, chunksize=1)
            yield Speed(layer, LAYERS[layer], derived, round(before, 2), round(after, 2),
                        told == without)  # fmt: skip


def row_apart(target: str, off: str = "") -> Row:
    """Return the row of a target, made in a process of its own."""
    ended = Row(target, off, "refused", "", 0, 0.0, f"ended, or stopped after {LIMIT_S} s")
    return apart(lambda: row_of(target, off), ended, LIMIT_S)


def lines_of(name: str) -> int:
    """Return how many lines a proposing function has."""
    for path in (REQUEST / file for file in ("repairs.py", "lines.py", "named_shapes.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return (node.end_lineno or 0) - node.lineno + 1
    return 0


def speed_table(rows: list[Speed]) -> Iterator[str]:
    """Yield the part of the page on layers that only save time."""
    yield "## Layers of a run that only save time"
    yield ""
    yield (
        "Processor seconds of derivations, forward and training, with runs at two more shapes. "
        "*Same*: how many have the same formulas, domains and notes."
    )
    yield ""
    yield "| layer | lines | derivations | with, s | without, s | ratio | same |"
    yield "|---|--:|---|--:|--:|--:|--:|"
    for layer in dict.fromkeys(row.layer for row in rows):
        mine = [row for row in rows if row.layer == layer]
        before, after = sum(row.with_s for row in mine), sum(row.without_s for row in mine)
        names = ", ".join(row.derived for row in mine)
        yield (
            f"| {layer} | {mine[0].lines} | {names} | {before:.1f} | {after:.1f} "
            f"| {after / before:.2f} | {sum(row.same for row in mine)} of {len(mine)} |"
        )


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the Markdown page."""
    asked = [row for row in rows if not row.off]
    stages = {s: sum(row.found_by == s for row in asked) for s in
              ("first guess", "model's call", "repair", "refused")}  # fmt: skip
    served = defaultdict(list)
    for row in asked:
        for name in row.proposed_by.split() if row.found_by == "repair" else ():
            served[name].append(row.target)
    yield "# What single guesses carry"
    yield ""
    yield "Written by `python reports/ablation.py`; all rows in the CSV beside it."
    yield (
        f"{len(asked)} of the {len(TARGETS)} targets of `foreign_modules.py`, asked for by their "
        "names alone: "
        + ", ".join(f"{count} by {stage}" for stage, count in stages.items() if stage != "refused")
        + f"; {stages['refused']} refused."
    )
    yield ""
    yield "| proposes repairs | lines | targets it serves | switched off, these become |"
    yield "|---|--:|--:|---|"
    names = (*METHODS, *OF_LINES, *OF_SHAPES)
    for name in sorted(names, key=lambda name: -len(served[name])):
        without = [row for row in rows if row.off == name]
        told = [f"`{row.target}`: {row.found_by}" for row in without]
        there = lines_of(name)
        yield f"| `{name}` | {there or 'deleted'} | {len(served[name])} | {', '.join(told)} |"


def main() -> None:
    """Write the table and the page, first in the environment made for it."""
    folder = Path(os.environ.get("FOREIGN_MODULES", f"{tempfile.gettempdir()}/foreign-modules"))
    if Path(sys.prefix) != folder:
        python = str(environment(folder))
        os.execv(python, [python, *sys.argv])  # noqa: S606 - the same script
    import timm  # noqa: F401 - once for all processes
    import torch
    import transformers  # noqa: F401

    from attnprof.trace.request import lookup  # noqa: F401

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent))
    again = tuple(sys.argv[1:])
    if again == ("--speed",):
        kept = [row for row in earlier(SPEEDS, Speed) if row.layer not in LAYERS]
        save(SPEEDS, Speed, [*kept, *speed()])
        write_page(earlier(GUESSES, Row))
        return
    rows = [r for r in earlier(GUESSES, Row) if not (again and r.target.startswith(again))]
    targets = sorted(TARGETS, key=lambda target: target.startswith("transformers"))
    for target in [name for name in targets if not any(row.target == name for row in rows)]:
        rows.append(row_apart(target))
        served = rows[-1].proposed_by.split() if rows[-1].found_by == "repair" else []
        rows += [row_apart(target, name) for name in served if name != "repairs"]
        save(GUESSES, Row, rows)
        write_page(rows)


def write_page(rows: list[Row]) -> None:
    """Write the page of the rows that there are."""
    text = "\n".join([*page(rows), "", *speed_table(earlier(SPEEDS, Speed))])
    Path(__file__).with_suffix(".md").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
