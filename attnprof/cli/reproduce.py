"""``attnprof reproduce``: the documents' claims, tables and figures made again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnprof.cli.crossover import ensure_figure
from attnprof.cli.options import ForceOption, OutputOption
from attnprof.cli.output import Tables, deliver, ensure_writable, environment, note
from attnprof.cli.progress import progress_bar
from attnprof.cli.replay_request import Asked, asked_for, refuse_contradictions
from attnprof.cli.request import some_of
from attnprof.errors import CannotRunError, CheckFailedError
from attnprof.papers.checks import VERDICTS
from attnprof.papers.committed import accept as accept_verdicts
from attnprof.papers.finding import find_figure, find_table
from attnprof.papers.measured import fresh, ship
from attnprof.papers.regenerating import figure_values, table_values
from attnprof.papers.replay import only, replay
from attnprof.record import Report, write_whole
from attnprof.render import reproduction as view
from attnprof.render.regenerated_table import regenerated_table
from attnprof.render.reproduction_files import files_there, make_folder
from attnprof.render.reproduction_page import reproduction_page

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Claims named on stderr before the rest is only counted.
NAMED = 8


class Format(StrEnum):
    """How a replay is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


DocumentsArgument = Annotated[
    list[str] | None,
    Argument(metavar="[DOCUMENT ...]", help="000 to 004 or a name, like taylorshift.",
             show_default=False),
]  # fmt: skip
ClaimOption = Annotated[
    str | None, Option("--claim", metavar="IDS", help="Claims in full, like 004-EQ6.")
]
TableOption = Annotated[
    str | None, Option("--table", metavar="N", help="One table of one document, made again.")
]
FigureOption = Annotated[
    str | None, Option("--figure", metavar="N", help="One figure of one document, made again.")
]
DrawOption = Annotated[
    Path | None, Option("--plot", metavar="FILE", help="Draw --figure: PNG, SVG or PDF.")
]
AllOption = Annotated[bool, Option("--all", help="Every claim, matches too.")]
MeasureOption = Annotated[
    bool, Option("--measure", help="Measure here again what was measured; takes minutes.")
]
VerdictOption = Annotated[
    str | None, Option("--verdict", metavar="NAMES", help="Only match, erratum, not-reproducible.")
]
ReportsOption = Annotated[
    Path | None, Option("--reports", metavar="DIR", help="Write pages, tables and figures there.")
]
AcceptOption = Annotated[
    bool, Option("--accept", help="Take these verdicts (and measurements) as the committed ones.")
]
FormatOption = Annotated[Format, Option("--format", "-f", help="How to write the result.")]


def reproduce(
    documents: DocumentsArgument = None,
    *,
    claim: ClaimOption = None,
    table: TableOption = None,
    figure: FigureOption = None,
    plot: DrawOption = None,
    everything: AllOption = False,
    measure: MeasureOption = False,
    verdict: VerdictOption = None,
    reports: ReportsOption = None,
    accept: AcceptOption = False,
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    force: ForceOption = False,
) -> int:
    """Recompute every claim, table and figure of the documents: does it hold, or what is right?

    Without --measure, what only a clock or an allocator can say is taken from measurements that
    ship with the package. Ends with 1 if a verdict is not the committed one.

    Example: attnprof reproduce 004 --table 2
    """
    ensure_writable(output, force=force)
    ensure_figure(plot, force=force)
    asked = asked_for(documents or [], claim, table, figure)
    refuse_contradictions(asked, plot, reports)
    shown = some_of(verdict, VERDICTS, "--verdict") if verdict else None
    if reports is not None:
        make_folder(reports)
        for path in files_there(reports, asked.documents):
            ensure_writable(path, force=force, flag="--reports")
    with _measured(asked.documents, measure) as made:
        found = _replayed(asked, plot)
        failed = _written(found, asked.documents, reports) if reports is not None else {}
        kept = found if shown is None else only(found, shown)
        in_full = shown is not None or bool(documents) or asked.by_name
        tables = _tables(asked, everything=everything, in_full=in_full)
        if fmt == Format.HTML:
            _deliver_html(kept, asked, output, whole=everything or bool(documents))
        else:
            deliver(kept, fmt, output, tables, partial(reproduction_page, in_full=asked.by_name))
        if accept:
            _accept(found, made)
            found = replace(found, summary={**found.summary, "changed": [], "not_committed": []})
    return _ended(found, failed)


@contextmanager
def _measured(numbers: list[str], measure: bool) -> Iterator[dict[str, dict[str, Any]]]:
    """Inside, measurements are those made now, where that was asked; gives them by document."""
    made: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        for number in numbers if measure else ():
            made[number] = stack.enter_context(fresh(number, note))
        yield made


def _replayed(asked: Asked, plot: Path | None) -> Report:
    with progress_bar(len(asked.claims), "replaying") as tell:
        found = replay(asked.claims, environment=environment(), tell=tell)
    number, more = asked.documents[0], {}
    if asked.table is not None:
        more["table"] = table_values(asked.table, find_table(number, asked.table)[1]())
    if asked.figure is not None:
        _, figure = find_figure(number, asked.figure)
        data = figure.data()
        more["figure"] = figure_values(asked.figure, figure, data)
        if plot is not None:
            from attnprof.render.plots.documents import plot_figure

            plot_figure(number, asked.figure, data, plot)
            note(f"wrote {plot}")
    return replace(found, summary={**found.summary, **more})


def _tables(asked: Asked, *, everything: bool, in_full: bool) -> Tables:
    """What the terminal shows: a table or figure, whole answers, every claim, or a summary."""

    def tables(report: Report) -> list[RenderableType]:
        if everything:
            return view.claims_tables(report)
        shown = []
        if asked.table is not None:
            shown += regenerated_table(report.summary["table"])
        if asked.figure is not None:
            shown += view.described_table(report.summary["figure"])
        if shown:
            return [*shown, *view.beside(view.records_of(report))]
        if asked.by_name:
            return view.answers(view.records_of(report))
        return view.document_tables(report) if in_full else view.summary_tables(report)

    return tables


def _written(found: Report, numbers: list[str], folder: Path) -> dict[str, str]:
    """The reports on disk; gives what could not be made."""
    from attnprof.papers.regenerating import regenerate
    from attnprof.render.reproduction_files import write_document, write_page

    failed: dict[str, str] = {}
    for number in numbers:
        made = regenerate(number)
        missing = write_document(number, found, made, folder / number)
        failed |= {f"{number} {name}": why for name, why in missing.items()}
    write_page(found, folder)
    note(f"wrote {folder / 'reproduction.md'} and {', '.join(numbers)} beside it")
    return failed


def _deliver_html(report: Report, asked: Asked, output: Path | None, *, whole: bool) -> None:
    from attnprof.papers.regenerating import regenerate
    from attnprof.render.reproduction_html import pictured, reproduction_html

    made = {number: regenerate(number) for number in asked.documents if whole and not asked.by_name}
    text = reproduction_html(report, *pictured(report, made))
    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text)
    note(f"wrote {output}")


def _accept(found: Report, made: dict[str, dict[str, Any]]) -> None:
    """What came out now becomes what later replays are compared with."""
    for path in accept_verdicts(view.records_of(found)):
        note(f"wrote {path}")
    for number, values in made.items():
        if values:
            import torch

            from attnprof.measure.environment import describe_environment

            where = describe_environment("cuda" if torch.cuda.is_available() else "cpu")
            for path in ship(number, values, where):
                note(f"wrote {path}")


def _ended(found: Report, failed: dict[str, str]) -> int:
    """What to tell at the end, and the exit code."""
    for name, why in failed.items():
        note(f"{name} could not be made: {why}")
    for what, key in (
        ("no check or a broken one", "errors"),
        ("no committed verdict", "not_committed"),
    ):
        names = found.summary[key]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            note(f"{what}: {', '.join(names[:NAMED])}{more}")
    changed = found.summary["changed"]
    if changed:
        raise CheckFailedError(
            f"{len(changed)} of {len(found.records)} verdicts are not the committed ones: "
            f"{', '.join(changed)}; see attnprof reproduce --claim {changed[0]}, or take them over "
            "with --accept"
        )
    return CannotRunError.exit_code if failed else 0
