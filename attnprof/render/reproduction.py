"""A replay on the terminal: counts, errata, full answers, regenerated tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnprof.record import Report, ReproduceRecord
from attnprof.render.claim_text import WORDS, place_text, printed_and_ours, shortened, value_text
from attnprof.render.terminal import console_width, is_narrow, new_table

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {"match": "green", "erratum": "red", "not-reproducible": "yellow", "error": "magenta"}
#: Letters of the columns of a list, and between them.
PLACE, VERDICT, GAP = 24, len("not reproducible"), 2
MORE = "Whole answers: attnprof reproduce --claim ID, or --verdict erratum; all claims: --all."


def records_of(report: Report, *verdicts: str) -> list[ReproduceRecord]:
    """The records of a replay, of these verdicts where some are named."""
    found = [record for record in report.records if isinstance(record, ReproduceRecord)]
    return [record for record in found if not verdicts or record.verdict in verdicts]


def summary_tables(report: Report) -> list[RenderableType]:
    """Counts by document, and what the documents have wrong, a line each."""
    errata = records_of(report, "erratum")
    shown: list[RenderableType] = [counts_table(report)]
    if errata:
        shown.append(_listed("Errata", errata))
    shown += _unanswered(report)
    return [*shown, Text(MORE, style="dim")]


def document_tables(report: Report) -> list[RenderableType]:
    """Counts, and whole answers where something is not as printed (or what was filtered for)."""
    records = [r for r in records_of(report) if r.verdict != "match"] or records_of(report)
    return [counts_table(report), *answers(records)]


def claims_tables(report: Report) -> list[RenderableType]:
    """Counts, and every claim with its verdict, matches too."""
    return [counts_table(report), _listed("Claims", records_of(report), verdicts=True)]


def counts_table(report: Report) -> Table:
    """How many claims of each document came out how."""
    table = new_table("Claims replayed")
    table.add_column("document")
    heads = ("claims", "match", "erratum", "not reproducible", "error", "by reading")
    keys = ("claims", "match", "erratum", "not-reproducible", "error", "readings")
    counts = report.summary["documents"]
    kept = [n for n, key in enumerate(keys) if key != "error" or report.summary["errors"]]
    for n in kept:
        longest_word = max(map(len, heads[n].split()))
        table.add_column(heads[n], justify="right", min_width=longest_word)
    for number, count in counts.items():
        table.add_row(f"{number} {count['title']}", *(str(count[keys[n]]) for n in kept))
    if len(counts) > 1:
        table.add_section()
        total = (str(sum(count[keys[n]] for count in counts.values())) for n in kept)
        table.add_row("all", *total)
    return table


def _listed(title: str, records: Sequence[ReproduceRecord], *, verdicts: bool = False) -> Table:
    """A line a claim; what does not fit is cut."""
    table = new_table(title)
    heads = ["claim", *([] if is_narrow() else ["place"]), *(["verdict"] if verdicts else [])]
    for name in (*heads, "printed", "ours" if verdicts else "right"):
        table.add_column(name, no_wrap=True)
    before = max((len(record.claim) for record in records), default=0) + GAP
    before += 0 if is_narrow() else PLACE + GAP
    before += VERDICT + GAP if verdicts else 0
    most = max(16, (Console(width=console_width()).width - before - 2 * GAP) // 2)
    for record in records:
        both = [Text(shortened(text, most)) for text in printed_and_ours(record)]
        place = [] if is_narrow() else [Text(shortened(place_text(record.place), PLACE))]
        verdict = [_verdict(record)] if verdicts else []
        table.add_row(Text(record.claim), *place, *verdict, *both)
    return table


def _verdict(record: ReproduceRecord) -> Text:
    return Text(WORDS[record.verdict], style=COLOURS[record.verdict])


def _unanswered(report: Report) -> Iterator[RenderableType]:
    """Checks that broke, with the reason; claims without a check, by name."""
    for record in records_of(report, "error"):
        yield Text(f"{record.claim} has no verdict: {record.why}", style="magenta")


def answers(records: Sequence[ReproduceRecord]) -> list[RenderableType]:
    """Full answers, one block a claim."""
    return [block for record in records for block in _answer(record)]


def beside(records: Sequence[ReproduceRecord]) -> list[RenderableType]:
    """The claims about a table or figure: matches by name, what is otherwise in full."""
    matches = [record.claim for record in records if record.verdict == "match"]
    shown = answers([record for record in records if record.verdict != "match"])
    if matches:
        shown.append(Text(f"match: {', '.join(matches)}", style="green"))
    return shown


def _answer(record: ReproduceRecord) -> Iterator[RenderableType]:
    head = Text.assemble((record.claim, "bold"), f"  {place_text(record.place)}  ")
    yield head.append(WORDS[record.verdict], style=COLOURS[record.verdict])
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, text in answer_lines(record):
        grid.add_row(name, Text(text))
    yield Padding(grid, (0, 0, 1, 2))


def answer_lines(record: ReproduceRecord) -> Iterator[tuple[str, str]]:
    """What there is to say of a claim: name and text."""
    yield "says", record.says
    if record.verdict != "error":
        yield "published", value_text(record.published)
        yield "ours", value_text(record.ours)
        yield "verdict", f"{WORDS[record.verdict]} ({record.basis})"
        yield "how", record.how
    if record.why:
        yield "why", record.why
    if record.committed and record.committed != record.verdict:
        yield "before", f"{WORDS[record.committed]}: the committed verdict is another one"


def described_table(figure: Mapping[str, Any]) -> list[RenderableType]:
    """What a document says of its figure, beside what our data say."""
    table = new_table()
    for name in ("what", "in the document", "ours", ""):
        table.add_column(name, overflow="fold")
    for its in figure["described"]:
        agrees = Text("agrees", style="green") if its["agrees"] else Text("differs", style="red")
        cells = (Text(str(its[key])) for key in ("what", "printed", "ours"))
        table.add_row(*cells, agrees)
    return [Text(f"Figure {figure['name']}: {figure['title']}", style="bold"), table]
