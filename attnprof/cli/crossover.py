"""``attnprof crossover``: from which length on one mechanism is cheaper than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from attnprof.algebra.parser import short
from attnprof.cli import options as opt
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, ensure_writable, environment, note
from attnprof.cli.request import label, one_of, some_of
from attnprof.cli.sides import has_module, sides
from attnprof.cli.sizes import check_points, parse_names, parse_size, parse_sizes
from attnprof.errors import RequestError
from attnprof.record import CrossoverRecord, Report
from attnprof.symbolic.lengths import LONGEST
from attnprof.symbolic.meeting import ALL_KINDS, DERIVED, KINDS, METRICS, Meeting, report
from attnprof.workload import DTYPES, SCOPES, Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT = ("taylor-direct", "taylor-efficient")
#: Quantities by the metric they are.
METRIC_OF = {"flops": "flops", "memory": "memory", "peak_bytes": "memory", "peak_entries": "memory"}
#: What each kind is, under the table.
MEANING = {
    "published": "the documents' printed formulas, memory as an idealised sum of entries",
    "formula": "our closed forms of the shipped implementation, memory as its peak in bytes",
    "derived": "counted in the running code",
    "measured": "the allocator's own peaks",
}
FIRST_LENGTH = "from token: the first whole length from which the one cheaper above is not dearer"


def crossover(
    mechanism_a: Annotated[
        str | None, Argument(metavar="A", help="Mechanism (default taylor-direct).")
    ] = None,
    mechanism_b: Annotated[
        str | None, Argument(metavar="B", help="Mechanism (default taylor-efficient).")
    ] = None,
    *,
    attention: opt.AttentionOption = None,
    d: opt.HeadDimsOption = "64",
    heads: opt.HeadCountOption = "1",
    batch: opt.BatchOption = "1",
    scope: opt.CrossoverScopeOption = None,
    phase: opt.PhaseOption = "forward",
    kind: opt.KindOption = None,
    metric: opt.MetricOption = None,
    quantity: opt.QuantityOption = None,
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",  # noqa: ARG001 - arithmetic needs no device
    settings: opt.SetOption = None,
    args: opt.ArgOption = None,
    inputs: opt.InputOption = None,
    plot: opt.PlotOption = None,
    fmt: opt.FormatOption = Format.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """The length from which one mechanism is cheaper than another, in FLOPs and in memory.

    The two costs are solved for the length: exactly, with a closed form in the head width d where
    there is one.

    Example: attnprof crossover --d 8,16,32,64,128
    """
    ensure_writable(output, force=force)
    ensure_figure(plot, force=force)
    if scope is not None:
        one_of(scope, SCOPES, "--scope")
    one_of(dtype, DTYPES, "--dtype")
    metrics = _metrics(metric, quantity)
    head_dims = parse_sizes(d, "--d")
    check_points(len(head_dims), f"--d {short(d)}")
    how = {"args": args, "inputs": inputs, "causal": causal, "dtype": dtype}
    first, second = sides(pair_of(mechanism_a, mechanism_b, attention, DEFAULT), settings, **how)
    own = has_module(first, second)
    kinds = some_of(kind, ALL_KINDS, "--kind") if kind else [DERIVED] if own else list(KINDS)
    scope = scope or ("layer" if own else "core")  # a module is a layer: so is its rival
    count, size = parse_size(heads, "--heads"), parse_size(batch, "--batch")
    workload = Workload(1, count, head_dims[0], size, causal=causal, phase=phase, dtype=dtype)
    found = _found(first, second, workload, scope, head_dims, kinds, metrics, plot is not None)
    if plot is not None:
        from attnprof.render.plots.crossover import plot_crossover

        plot_crossover(found, plot)
        note(f"wrote {plot}")
    deliver(
        found, fmt, output, lambda shown: [*_tables(shown), *_why(first, second, workload, shown)]
    )


def _why(first: Any, second: Any, workload: Workload, found: Report) -> list[RenderableType]:
    """The sentence that belongs to memory rows of a document beside rows of running code."""
    from rich.text import Text

    rows = [r for r in found.records if isinstance(r, CrossoverRecord) and r.metric == "memory"]
    kinds = {row.kind for row in rows}
    if not ("published" in kinds and kinds & {"derived", "measured"}):
        return []
    from attnprof.symbolic.memory_words import why_memory_differs

    said = why_memory_differs(first, second, workload, rows[0].scope)
    return [Text(f" {said}")] if said else []


def _found(
    first: Any, second: Any, workload: Workload, scope: str,
    head_dims: list[int], kinds: list[str], metrics: list[str], with_curves: bool,
) -> Report:  # fmt: skip
    """Arithmetic alone where that is enough; torch only where code has to run."""
    if set(kinds) <= set(KINDS) and not has_module(first, second):
        meeting = Meeting(first, second, workload, scope)
        return report(
            meeting, head_dims, kinds, metrics, with_curves=with_curves, environment=environment()
        )
    from attnprof.measure.meetings import meet

    return meet(
        first, second, workload, scope, head_dims, kinds, metrics,
        with_curves=with_curves, environment=environment(),
    )  # fmt: skip


def pair_of(
    a: str | None, b: str | None, attention: str | None, default: tuple[str, str]
) -> list[str]:
    """The two mechanisms of a command, from its arguments or ``--attention``.

    Raises :class:`RequestError` for one, for three, and for both ways at once.
    """
    given = [name for name in (a, b) if name is not None]
    listed = [] if attention is None else parse_names(attention)
    if given and listed:
        raise RequestError("name the two mechanisms once: as A B, or as --attention A,B")
    names = given or listed or list(default)
    if len(names) != 2 or names[0] == names[1]:
        raise RequestError(
            f"{' '.join(names)}: this command compares two different mechanisms; "
            f"type two names, like {' '.join(default)}"
        )
    return names


def ensure_figure(path: Path | None, *, force: bool) -> None:
    """Refuse a figure's path before the work is done; :class:`RequestError` says why."""
    if path is None:
        return
    from attnprof.render.plots.save import check_figure_path

    ensure_writable(path, force=force, flag="--plot")
    check_figure_path(path)


def _metrics(metric: str | None, quantity: str | None) -> list[str]:
    """Metrics asked for, by ``--metric`` or as quantities; both where nothing is asked."""
    if metric is not None and quantity is not None:
        raise RequestError("--metric and --quantity say the same thing; leave one of them out")
    flag, text = ("--metric", metric) if quantity is None else ("--quantity", quantity)
    if text is None:
        return list(METRICS)
    possible = METRICS if quantity is None else tuple(METRIC_OF)
    return list(dict.fromkeys(METRIC_OF[name] for name in some_of(text, possible, flag)))


def _tables(found: Report) -> list[RenderableType]:
    from rich.text import Text

    from attnprof.render.terminal import new_table

    rows = [record for record in found.records if isinstance(record, CrossoverRecord)]
    table = new_table(_title(rows[0]))
    for name in ("d", "metric", "kind", "crossover", "from token", "below", "above"):
        numeric = name in ("d", "crossover", "from token")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    notes = [Text(f" {text}") for text in (*_forms(rows), *_remarks(rows))]
    return [table, *notes, Text(_caption(rows), style="dim")]


def _caption(rows: list[CrossoverRecord]) -> str:
    kinds = dict.fromkeys(row.kind for row in rows)
    lines = [f"{kind}: {MEANING[kind]}" for kind in kinds]
    if "published" in kinds and len(kinds) > 1:
        lines.append("published memory and the others are not expected to be equal")
    return "; ".join([*lines, FIRST_LENGTH])


def _title(row: CrossoverRecord) -> str:
    mask = ", causal" if row.causal else ""
    return (
        f"Cheaper: {label(row.mechanism_a, row.params_a)} or "
        f"{label(row.mechanism_b, row.params_b)}\n"
        f"{row.scope}, {row.phase}{mask}, batch {row.batch_size}, heads {row.num_heads}"
    )


def _cells(row: CrossoverRecord) -> list[str]:
    from attnprof.units import MISSING, format_count

    unit = "FLOPs" if row.unit == "flops" else f"memory, {row.unit}"
    if row.skipped:
        return [str(row.head_dim), unit, row.kind, "skipped", *[MISSING] * 3]
    digits = 0 if row.method == "searched" else 2  # a search knows whole lengths
    at = row.verdict if row.crossover_seq_len is None else f"{row.crossover_seq_len:,.{digits}f}"
    return [
        str(row.head_dim),
        unit,
        row.kind,
        at,
        MISSING if row.first_seq_len is None else format_count(row.first_seq_len),
        row.cheaper_below or "equal",
        row.cheaper_above or "equal",
    ]


def _named(metric: str) -> str:
    return "FLOPs" if metric == "flops" else metric


def _forms(rows: list[CrossoverRecord]) -> list[str]:
    """Closed forms, one line each with the head widths it holds for where there are several."""
    widths: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.closed_form:
            what = (row.metric, row.kind, row.closed_form)
            widths.setdefault(what, []).append(str(row.head_dim))
    asked = len({row.head_dim for row in rows})
    return [
        f"{_named(metric)} ({kind}): crossover = {form}"
        + (f", d = {', '.join(found)}" if len(found) < asked else "")
        for (metric, kind, form), found in widths.items()
    ]


def _searched(row: CrossoverRecord) -> str:
    """Which lengths the answer is for: ``never between 64 and 4,096 tokens, in steps of 64``."""
    everywhere = [[first, None] for first in (1, 2)]
    if not row.searched or (row.searched_step == 1 and row.searched[0] in everywhere):
        return ""
    what = row.verdict if row.verdict in ("never", "always") else "searched"
    steps = f", in steps of {row.searched_step}" if row.searched_step != 1 else ""
    ends = (
        f"from {low:,} tokens on" if high is None else f"between {low:,} and {high:,} tokens"
        for low, high in row.searched
    )
    return f"{what} {' and '.join(ends)}{steps}, where both costs are known"


def _remarks(rows: list[CrossoverRecord]) -> list[str]:
    """What a row cannot say: several crossings, refusals, the formulas' sources."""
    found, ranges = [], dict[str, list[str]]()
    for row in rows:
        what = f"d={row.head_dim} {_named(row.metric)} ({row.kind})"
        if row.verdict == "several":
            shown = ", ".join(f"{x:,.2f}" for x in row.all_crossings[:8])
            more = ", …" if len(row.all_crossings) > 8 else ""
            found.append(f"{what}: crosses {len(row.all_crossings)} times, at {shown}{more}")
        if row.skipped:
            found.append(f"{what} skipped: {row.skipped}")
        elif said := _searched(row):
            ranges.setdefault(said, []).append(what)
        if row.bound:
            found.append(f"{what}: {row.bound}")
    found += [f"{', '.join(what)}: {said}" for said, what in ranges.items()]
    searched = dict.fromkeys(
        f"{_named(row.metric)} ({row.kind})" for row in rows if row.method == "searched"
    )
    if searched:
        found.append(
            f"{', '.join(searched)}: sizes are rounded up or down, so there is no closed form; "
            f"searched by integers, to 2**{LONGEST.bit_length() - 1} tokens at most"
        )
    found += [f"{_named(row.metric)} (published) from {row.source}" for row in rows if row.source]
    return list(dict.fromkeys(found))
