"""``attnprof reproduce``: recompute the documents' claims, tables and figures."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typer import Argument

from attnprof.cli import options as opt
from attnprof.cli.request import parse_names, some_of
from attnprof.errors import CannotRunError, CheckFailedError, RequestError
from attnprof.papers import documents as papers
from attnprof.papers import replay
from attnprof.papers.checks import VERDICTS
from attnprof.papers.regenerated import regenerate
from attnprof.record import Report, ReproduceRecord, write_whole
from attnprof.record.files import make_folder
from attnprof.render.plots.documents import plot_figure
from attnprof.render.reproduction import existing_files, reproduction_html, write_document
from attnprof.render.tables.reproduce import reproduce_page

#: Claims named on stderr before the rest is only counted.
NAMED = 8


def reproduce(
    documents: list[str] | None = Argument(
        None, metavar="[DOCUMENT ...]", help="000 to 004, or a name like taylorshift or recent."
    ),
    *,
    claim: str | None = opt.flag("IDS", "Claims in full, like 004-EQ6."),
    table: str | None = opt.flag("N", "One table of one document, made again."),
    figure: str | None = opt.flag("N", "One figure of one document, made again."),
    plot: Path | None = opt.flag("FILE", "Draw --figure: PNG, SVG or PDF."),
    size: opt.SizeOption = "page",
    everything: bool = opt.switch("--all", "Every claim, matches too."),
    measure: bool = opt.switch("--measure", "Measure again, here; takes minutes."),
    verdict: str | None = opt.flag("NAMES", "Only match, erratum or not-reproducible."),
    reports: Path | None = opt.flag("DIR", "Write pages, tables and figures."),
    accept: bool = opt.switch("--accept", "Commit these verdicts (and measurements)."),
    to: opt.Output,
) -> int:
    """Recompute every claim, table and figure of five papers.

    What only a clock or an allocator can say is taken from measurements that ship with the
    package, or with --measure made here. Ends with 1 if a verdict is not the committed one.

    Examples:
      attnprof reproduce 004 --table 2
      attnprof reproduce --claim 004-EQ6
      attnprof reproduce 004 --figure 1 --plot figure1.png
    """
    opt.ensure_figure(plot, force=to.force)
    request = asked_for(documents or [], claim, table, figure)
    if plot is not None and request.kind != "figure":
        raise RequestError(
            f"--plot draws one figure: type attnprof reproduce 004 --figure 1 --plot {plot}"
        )
    if reports is not None and request.by_name:
        raise RequestError("--reports writes whole documents: leave --claim, --table, --figure out")
    shown = None if verdict is None else some_of(verdict, VERDICTS, "--verdict")
    if reports is not None:
        make_folder(reports, "--reports ")
        for path in existing_files(reports, request.documents):
            opt.ensure_writable(path, force=to.force, flag="--reports")
    with ExitStack() as stack:  # inside, with --measure, measurements are made anew
        again = request.documents if measure else []
        results = {number: stack.enter_context(papers.fresh(number, opt.note)) for number in again}
        report = _replay_claims(request, plot, size)
        failed = _write_reports(report, request.documents, reports) if reports is not None else {}
        kept = report if shown is None else replay.only(report, shown)
        in_full = shown is not None or bool(documents) or request.by_name
        if to.fmt == opt.Format.HTML:
            whole = (everything or bool(documents)) and not request.by_name
            made_again = {number: regenerate(number) for number in request.documents if whole}
            opt.write(reproduction_html(kept, made_again), to.output)
        else:
            to.deliver(kept, everything=everything, in_full=in_full, by_name=request.by_name)
        if accept:
            _commit_results(report, results)
            report = replace(report, summary={**report.summary, "changed": [], "not_committed": []})
    return _finish(report, failed)


@dataclass(frozen=True)
class ReplayRequest:
    """The documents and claims to replay, and how to ``make`` the one table or figure asked for.

    ``by_name``: claims, a table or a figure were named; otherwise whole documents are replayed.
    """

    documents: list[str]
    claims: list[str]
    kind: str = ""
    make: Callable[[], dict[str, Any]] | None = None
    by_name: bool = True


def asked_for(
    names: Sequence[str], claim: str | None, table: str | None, figure: str | None
) -> ReplayRequest:
    """Return the request; :class:`RequestError` suggests names close to an unknown one."""
    if sum(item is not None for item in (claim, table, figure)) > 1:
        raise RequestError("ask for one of --claim, --table and --figure")
    numbers = [document.number for document in papers.find_documents(names)]
    if claim is not None:
        ids = papers.find_claims(parse_names(claim, "--claim", "type names like 004-EQ6"))
        of_claims = [papers.claims()[name].document for name in ids]
        for name, number in zip(ids, of_claims, strict=True):
            if number not in numbers:
                raise RequestError(f"{name} is a claim of {number}: leave {' '.join(numbers)} out")
        return ReplayRequest(sorted(set(of_claims)), ids)
    for kind, part in {"table": table, "figure": figure}.items():
        if part is None:
            continue
        if len(numbers) != 1:
            flag = f"--{kind} {part}"
            raise RequestError(f"{flag} of which document? type: attnprof reproduce 004 {flag}")
        key, make = papers.find_part(numbers[0], kind, part)
        return ReplayRequest(numbers, papers.claims_of(numbers[0], kind, key), kind, make)
    ids = [name for name, check in papers.claims().items() if check.document in numbers]
    return ReplayRequest(numbers, ids, by_name=False)


def _replay_claims(request: ReplayRequest, plot: Path | None, size: str) -> Report:
    """Return the report of the claims; recompute, and draw, the table or figure asked for."""
    with opt.working("replaying"):
        report = replay.replay(request.claims, environment=opt.environment())
    if request.make is None:
        return report
    values = request.make()
    if plot is not None:
        plot_figure(request.documents[0], values, plot, size)
        opt.note(f"wrote {plot}")
    return replace(report, summary={**report.summary, request.kind: values})


def _write_reports(report: Report, numbers: list[str], folder: Path) -> dict[str, str]:
    """Write the reports to disk; return the parts that failed, with the reason."""
    failed: dict[str, str] = {}
    for number in numbers:
        with opt.working(f"drawing the figures of {number}"):
            missing = write_document(number, report, regenerate(number), folder / number)
        failed |= {f"{number} {name}": why for name, why in missing.items()}
    write_whole(folder / "reproduction.md", reproduce_page(report, linked=True))
    opt.note(f"wrote {folder / 'reproduction.md'} and {', '.join(numbers)} beside it")
    return failed


def _commit_results(report: Report, results: dict[str, dict[str, Any]]) -> None:
    """Make these results the committed ones that later replays are compared with."""
    for path in replay.accept(report.of(ReproduceRecord)):
        opt.note(f"wrote {path}")
    for number, values in results.items():
        if values:
            import torch

            from attnprof.measure.environment import describe_environment

            where = describe_environment("cuda" if torch.cuda.is_available() else "cpu")
            for path in papers.ship(number, values, where):
                opt.note(f"wrote {path}")


def _finish(report: Report, failed: dict[str, str]) -> int:
    """Print the closing notes and return the exit code."""
    for name, why in failed.items():
        opt.note(f"{name} could not be made: {why}")
    missing = {"a check that works": "errors", "a verdict that ships": "not_committed"}
    for words, key in missing.items():
        if names := report.summary[key]:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            opt.note(f"without {words}: {', '.join(names[:NAMED])}{more}")
    if changed := report.summary["changed"]:
        raise CheckFailedError(
            f"{len(changed)} of {len(report.records)} verdicts are not the committed ones: "
            f"{', '.join(changed)}; see attnprof reproduce --claim {changed[0]}, or take them over "
            "with --accept"
        )
    return CannotRunError.exit_code if failed else 0
