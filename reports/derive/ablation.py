"""What single guesses carry: which led to the call that ran, and what becomes of it without them?

Every target of ``foreign.py`` is asked for by its name alone, and no formula is derived.
Written down is whether the first guess of arguments and inputs runs, the calls of a model that uses
the module, or a repair; which functions proposed that repair, and which guessed
something by a name, an annotation or code on the way. Each function that served few targets is then
switched off for those. In the environment that ``foreign.py`` makes::

    python reports/run.py derive/ablation            # targets that are not in the CSV
    python reports/run.py derive/ablation torch.nn   # these again
    python reports/run.py derive/ablation --speed    # layers that only save time

Layers of a run that only save time are switched off for derivations of ``tests/frozen``, whose
formulas, domains and notes have to stay as they are.
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import starmap
from pathlib import Path
from typing import Any

from derive.foreign import TARGETS, prepare
from rows import apart, earlier, grouped, save, table

HERE = Path(__file__).parent
__all__ = ["main", "prepare"]
REQUEST = HERE.parents[1] / "attnprof" / "trace" / "request"
#: Functions that guess by a name, an annotation or code, by where they are looked up; with what
#: they return of their arguments where they know nothing.
GUESSES: dict[str, dict[str, Callable[..., Any]]] = {
    "guesses": {
        "compared": lambda *_: "", "may_be_none": lambda *_: False,
        "module_of": lambda *_: None, "_with_grid": lambda *args: args[2],
        "form_of_several": lambda *_: "",
        "rotary_input": lambda *args: f"(B, N, {args[2]}), (B, N, {args[2]})",
    },
    "signatures": {
        "documented": lambda *_: {}, "sizes_at_default": lambda *_: {}, "_picture": lambda *_: "",
        "_words": lambda *_: "",
    },
    "configurations": {"_state_space_sizes": lambda *_: {}, "_best_class": lambda *_: None},
    "repairs": {"_of_another_width": lambda *args: args[2]},
}  # fmt: skip
#: Guesses that went, with their lines and the targets that they served; those now ask for more.
GONE = (
    ("any values for what no name tells, until something runs (now: two more names)", 57,
     "perceiver_pytorch:Perceiver"),
    ("entries of dicts that code reads, parts that it unpacks", 12, ""),
    ("a constant that the file passes elsewhere", 11, ""),
    ("the other side of an image, with its tokens", 12, ""),
    ("the opposite of a flag that a condition reads", 8, ""),
    ("other shapes of masks, cosines and sines that were given", 7, ""),
    ("a size that the failing line compares", 20,
     "timm.layers.selective_kernel:SelectiveKernelAttn"),
    ("the larger shape of a broadcast", 15,
     "diffusers.models.transformers.transformer_wan:WanTransformerBlock"),
)  # fmt: skip
#: How a target comes to run.
STAGES = ("first guess", "model's call", "repair", "refused")
#: Guesses that answered for more targets than this are not switched off.
MANY = 6
#: Rows of layers that only save time.
SPEEDS = HERE / "ablation_speed.csv"
#: Rows of targets.
ROWS = HERE / "ablation.csv"
#: Seconds that a target may take on a busy machine.
LIMIT_S = 900


@dataclass(frozen=True)
class Row:
    """How a target comes to run, with ``off``, if anything, switched off.

    ``proposed_by`` names what proposed the repair, ``guessed_by`` what answered on the way.
    """

    target: str
    off: str
    found_by: str
    proposed_by: str
    guessed_by: str
    tries: int
    seconds: float
    inputs: str


def row_of(target: str, off: str) -> Row:
    """Return how one target comes to run with a function switched off."""
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import target_of
    from attnprof.trace.request.target import Target

    watch = Watch(off)
    watch.begin()
    start = time.process_time()
    try:
        request = target_of(target, None, ())
        stage = "refused" if request.advice != Target.advice else "first guess"
        spelled = "; ".join(request.spelled_inputs)
        for sign, named in (("calls it with", "model's call"), ("tried first", "repair")):
            if any(sign in note for note in request.notes):
                stage = named
    except AttnprofError as error:
        stage, spelled = "refused", str(error).replace("\n", " ")[:200]
    by: dict[str, None] = {}
    for search in watch.searches if stage in ("repair", "model's call") else ():
        change = search.changes[-1]
        items = [*change.args.items(), *change.inputs.items()]
        by |= dict.fromkeys(watch.proposed.get((k, str(v)), "repairs") for k, v in items)
    count = sum(len(each.changes) for each in watch.searches)
    seconds = round(time.process_time() - start, 1)
    return Row(target, off, stage, " ".join(by), " ".join(watch.answered), count, seconds, spelled)


class Watch:
    """What proposed which change, which guesses answered, and the searches that found a repair."""

    def __init__(self, off: str) -> None:
        self.off = off
        self.proposed: dict[Any, str] = {}
        self.answered: dict[str, None] = {}
        self.searches: list[Any] = []

    def begin(self) -> None:
        """Patch the functions of this process."""
        from attnprof.trace.request import repairs
        from attnprof.trace.request.repairs import Tries

        repairs.REPAIRS = tuple((said, self._watched(one)) for said, one in repairs.REPAIRS)
        for where, guesses in GUESSES.items():
            module: Any = importlib.import_module(f"attnprof.trace.request.{where}")
            for name, nothing in guesses.items():
                setattr(module, name, self._guessing(getattr(module, name), nothing))
        search = Tries.until_one_runs

        def until_one_runs(tries: Any, first: Any, error: Exception) -> Any:
            if running := search(tries, first, error):
                self.searches.append(tries)
            return running

        Tries.until_one_runs = until_one_runs  # type: ignore[method-assign]

    def _watched(self, plain: Any) -> Any:
        """Return a function that proposes repairs as one that notes them; off, it proposes none."""

        @wraps(plain)
        def watched(failed: Any) -> Iterator[Any]:
            for repair in () if plain.__name__ == self.off else plain(failed):
                for key, value in (*repair.args.items(), *repair.inputs.items()):
                    self.proposed.setdefault((key, str(value)), plain.__name__)
                yield repair

        return watched

    def _guessing(self, plain: Any, nothing: Callable[..., Any]) -> Any:
        """Return a function that guesses as one that notes if it does; off, it knows nothing."""

        @wraps(plain)
        def watched(*args: Any) -> Any:
            unknown = nothing(*args)
            known = unknown if plain.__name__ == self.off else plain(*args)
            if known != unknown:
                self.answered[plain.__name__] = None
            return known

        return watched


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
    text = lines(derived)
    return time.process_time() - start, text


def speed() -> Iterator[Speed]:
    """Yield a row for each layer and derivation, each run in a process of its own."""
    import derive.shapes  # noqa: F401 - once for all processes

    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for layer, derived in ((layer, derived) for layer in LAYERS for derived in DERIVED):
            ways = [(derived, ""), (derived, layer)]
            (before, text), (after, without) = pool.starmap(timed, ways, chunksize=1)
            yield Speed(layer, LAYERS[layer], derived, round(before, 2), round(after, 2),
                        text == without)  # fmt: skip


def row_apart(target: str, off: str = "") -> Row:
    """Return the row of a target, made in a process of its own."""
    ended = Row(target, off, "refused", "", "", 0, 0.0, f"ended, or stopped after {LIMIT_S} s")
    return apart(lambda: row_of(target, off), ended, LIMIT_S)


def lines_of(name: str) -> int:
    """Return how many lines a function has; 0 if it is not there any more."""
    for path in REQUEST.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    layers = grouped(rows, lambda row: row.layer)
    heads = "layer | >lines | derivations | >with, s | >without, s | >ratio | >same"
    yield from table(heads, starmap(_speed_line, layers.items()))


def _speed_line(layer: str, rows: list[Speed]) -> tuple[Any, ...]:
    before, after = sum(row.with_s for row in rows), sum(row.without_s for row in rows)
    return (
        layer, rows[0].lines, ", ".join(row.derived for row in rows), f"{before:.1f}",
        f"{after:.1f}", f"{after / before:.2f}",
        f"{sum(row.same for row in rows)} of {len(rows)}",
    )  # fmt: skip


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the Markdown page."""
    from attnprof.trace.request.repairs import REPAIRS

    done = [row for row in rows if not row.off]
    stages = ", ".join(f"{sum(row.found_by == s for row in done)} by {s}" for s in STAGES[:-1])
    yield "# What single guesses carry"
    yield ""
    yield "Written by `python reports/run.py derive/ablation`; all rows in the CSV beside it."
    yield (
        f"{len(done)} of the {len(TARGETS)} targets of `foreign.py`, asked for by their "
        f"names alone: {stages}; {sum(row.found_by == STAGES[-1] for row in done)} refused. Where "
        "the last column is empty, nothing was switched off."
    )
    repairs = list(dict.fromkeys(proposed.__name__ for _, proposed in REPAIRS))
    guesses = [name for names in GUESSES.values() for name in names]
    for title, names, field in (("proposes repairs", repairs, "proposed_by"),
                                ("guesses", guesses, "guessed_by")):  # fmt: skip
        served = served_by(done, field)
        lines = []
        for name in sorted(names, key=lambda name: -len(served[name])):
            off = ", ".join(f"`{row.target}`: {row.found_by}" for row in rows if row.off == name)
            lines.append((f"`{name}`", lines_of(name) or "deleted", len(served[name]), off))
        yield ""
        yield from table(
            f"{title} | >lines | >targets it serves | switched off, these become", lines
        )


def gone() -> Iterator[str]:
    """Yield the part of the page on guesses that went."""
    yield "## What went"
    yield ""
    yield (
        "A guess that served none of the targets went, and so did the three longest of those that "
        "served one: the error names what is missing, what was tried, and the command with every "
        "argument and input to change. Others that serve one target stay, so that no more than two "
        "are lost; so do queries, keys and values in heads, which modules of one's own take and "
        "packages do not export, and the parameters that torch documents for its functions, as no "
        "target is a function."
    )
    yield ""
    yield from table(
        "guess | >lines | targets it served",
        ((what, lines, f"`{served}`" if served else "none") for what, lines, served in GONE),
    )


def served_by(rows: list[Row], field: str) -> dict[str, list[str]]:
    """Return the targets that come to run with each function."""
    served = defaultdict(list)
    for row in rows:
        for name in getattr(row, field).split() if row.found_by != STAGES[-1] else ():
            served[name].append(row.target)
    return served


def main() -> None:
    """Write the table and the page."""
    import torch

    from attnprof.trace.request import lookup  # noqa: F401
    from attnprof.user_code import loaded

    torch.set_num_threads(1)
    again = tuple(sys.argv[1:])
    if again == ("--speed",):
        kept = [row for row in earlier(SPEEDS, Speed) if row.layer not in LAYERS]
        save(SPEEDS, Speed, [*kept, *speed()])
        write_page(earlier(ROWS, Row))
        return
    rows = [r for r in earlier(ROWS, Row) if not (again and r.target.startswith(again))]
    for target in TARGETS:  # once for all processes
        loaded(target)
    for target in TARGETS:
        if not any(row.target == target for row in rows):
            rows.append(row_apart(target))
            save(ROWS, Row, rows)
    rows += [row_apart(target, off) for target, off in sorted(switched_off(rows))]
    save(ROWS, Row, rows)
    write_page(rows)


def switched_off(rows: list[Row]) -> set[tuple[str, str]]:
    """Return targets with what served them and few others, if there is no row of that yet."""
    done = [row for row in rows if not row.off]
    pairs = {
        (target, name)
        for field in ("proposed_by", "guessed_by")
        for name, served in served_by(done, field).items()
        for target in served
        if name != "repairs" and (field == "proposed_by" or len(served) <= MANY)
    }
    return pairs - {(row.target, row.off) for row in rows}


def write_page(rows: list[Row]) -> None:
    """Write the page of the rows that there are."""
    parts = [*page(rows), "", *gone(), "", *speed_table(earlier(SPEEDS, Speed))]
    text = "\n".join(parts)
    Path(__file__).with_suffix(".md").write_text(f"{text}\n", encoding="utf-8")
