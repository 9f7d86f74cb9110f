"""What single guesses carry: switched off, which modules of public packages no longer run?

Every target of ``foreign_modules.py`` is asked for by its name alone. Written down is whether the
first guess of arguments and inputs runs, the calls of a model that uses the module, or a repair,
and which functions proposed that repair. Each such function is then switched off for the targets
that it served. In the environment that ``foreign_modules.py`` makes::

    FOREIGN_MODULES=FOLDER python reports/ablation.py            # targets that are not in the CSV
    FOREIGN_MODULES=FOLDER python reports/ablation.py torch.nn   # these again
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreign_modules import TARGETS, environment
from row_files import earlier, save

HERE = Path(__file__).parent
REQUEST = HERE.parent / "attnprof" / "trace" / "request"
#: Methods of ``Failed``, and functions that ``repairs`` calls, which propose repairs.
METHODS = (
    "_parts", "_named", "_defaults", "_pairs", "_missing", "_classes", "_unset", "_layouts",
    "_pictures", "_numbers", "_fixed", "_twos",
)  # fmt: skip
OF_LINES = ("unflagged", "sized", "of_channels", "with_class")
OF_SHAPES = ("wider", "beside")
#: Seconds that a target may take on a busy machine.
LIMIT_S = 300


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


def apart(target: str, off: str = "") -> Row:
    """Return the row of a target, made in a process of its own."""
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: send.send(row_of(target, off))
    )
    child.start()
    found = Row(target, off, "refused", "", 0, 0.0, f"ended, or stopped after {LIMIT_S} s")
    send.close()
    if receive.poll(LIMIT_S):
        with suppress(EOFError):
            found = receive.recv()
    child.kill()
    child.join()
    return found


def lines_of(name: str) -> int:
    """Return how many lines a proposing function has."""
    for path in (REQUEST / file for file in ("repairs.py", "lines.py", "named_shapes.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return (node.end_lineno or 0) - node.lineno + 1
    return 0


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
        f"{len(asked)} targets of `foreign_modules.py`, asked for by their names alone: "
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
    table, again = Path(__file__).with_suffix(".csv"), tuple(sys.argv[1:])
    rows = [r for r in earlier(table, Row) if not (again and r.target.startswith(again))]
    for target in sorted(TARGETS, key=lambda target: target.startswith("transformers")):
        if not any(row.target == target for row in rows):
            rows.append(apart(target))
            save(table, Row, rows)
    for row in [row for row in rows if row.found_by == "repair" and not row.off]:
        for name in row.proposed_by.split():
            known = any(r.target == row.target and r.off == name for r in rows)
            if name != "repairs" and not known:
                rows.append(apart(row.target, name))
                save(table, Row, rows)
    text = "\n".join(page(rows))
    table.with_suffix(".md").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
