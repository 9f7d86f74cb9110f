"""Tables of ``profile``, ``predict``, ``recommend``, ``calibrate``, ``doctor`` and ``tradeoff``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DistillRecord, ProfileRecord, Report, TradeoffRecord, kinds
from attnprof.record.escapes import markdown_text
from attnprof.record.measured import named_results, varying
from attnprof.render import terminal
from attnprof.render.formats import markdown_table, render_markdown
from attnprof.render.terminal import FittedTable, Hanging, field_text, record_table, shown_value
from attnprof.units import MISSING, format_count, format_rate, grouped, joined, plural

COUNTS = ("flops_formula", "flops_derived", "matmul_flops_formula", "flops_torch", "flops_fvcore")
MEMORY = ("parameters", "peak_bytes_predicted", "peak_bytes_measured")
PEAK = "peak over what was live before the call"
#: Memory columns that only some phases or devices have, with a note for the caption.
PARTS = {
    "activations_bytes": "activations: what the forward pass leaves, its output included",
    "gradients_bytes": "", "optimizer_bytes": "AdamW's moments by arithmetic, no part of the peak",
    "kv_cache_bytes": "decoding state with its caches' room to grow", "state_bytes": "",
    "reserved_bytes": "", "workspace_bytes": "",
}  # fmt: skip
TIMES = ("median_s", "ci_low_s", "ci_high_s", "flops_per_s", "arithmetic_intensity")
ROOFLINE = ("bound", "roofline_time_s", "median_s", "roofline_fraction")
#: Operations shown of a single point, and of each of several.
SHOWN, FEW = 8, 3
STYLES = {"ok": "green", "none": "dim"}
#: Heading of each column, by its field or a name that :func:`_error_cell` knows.
COLUMNS = {
    "error_relative": "error", "spread": "over seeds", "error_worst_row": "worst row",
    "error_distribution": "weights", "flops": "FLOPs", "bytes_moved": "bytes",
    "peak_bytes": "peak", "median_s": "time",
}  # fmt: skip
MEANING = (
    "error: ‖y - y₀‖ / ‖y₀‖ against softmax attention's output y₀ of the same q, k and v, in "
    "float64 (1: as far as an output of zeros); median, least to largest over draws of random "
    "weights; worst row: the same of the row that is furthest. weights: mean total variation of "
    "the rows' weights, half the sum of |a - p|, each row divided by its sum, of the first draw. "
    "FLOPs, bytes and peak by the closed forms of the core; time: processor time of a call where "
    "that is a CPU, one thread, calls in turns. * no other setting has both fewer FLOPs and a "
    "smaller error."
)
SETTINGS = {
    "fair": "fair: one loss, the same steps and batches for all students",
    "printed": "as printed: random rows for the source, one batch, the listing's losses",
}
TRAINED = {
    "steps": "steps", "cross_entropy": "cross-entropy", "spread": "over seeds",
    "accuracy": "right", "kl_teacher": "KL", "mse_teacher": "MSE", "mse_ratio": "MSE ratio",
    "matmul_flops": "matmul FLOPs", "median_s": "time",
}  # fmt: skip
CLAIMS = ("claim", "says", "conditions suffice", "came out")
OF_STUDENTS = (
    "cross-entropy in nats, and share of right tokens, of the examples (fair: unseen sentences; as "
    "printed: the batch that is trained on); KL and MSE: divergence and mean squared error of the "
    "logits from the teacher's; MSE ratio: at this length over that at the trained one, smaller is "
    "better; matmul FLOPs by torch's counter and processor time on one thread, of a forward pass "
    "of the examples"
)


def profile_tables(report: Report) -> Iterator[RenderableType]:
    """Yield counts, memory, time and skipped points; a sweep's answer last."""
    records = report.of(ProfileRecord)
    done = named_results(records)
    yield Text(f"{_conditions(report, records)}\n")
    if done:
        keys = ("mechanism", "seq_len", *varying(records))

        def table(names: Sequence[str], **texts: str) -> RenderableType:
            return record_table(done, (*keys, *names), keys=len(keys), **texts)

        caption = "closed form, counts derived from the code, torch's counter, twice fvcore's MACs"
        yield table(COUNTS, title="FLOPs", caption=caption)
        parts = [n for n in PARTS if any(getattr(record, n) is not None for record in done)]
        caption = "; ".join(filter(None, (PEAK, *(PARTS[name] for name in parts))))
        yield table((*MEMORY, *parts), title="Memory", caption=caption)
        caption = "median of the times; low and high are the ends of its 95 % interval"
        yield table((*TIMES, "compile_s"), title="Time", caption=caption)
        if any(record.roofline_fraction for record in done):
            yield table(ROOFLINE, title="Roofline", caption=_ceilings(report.summary["roofline"]))
    whys = [(r, (r.skipped or "").removeprefix(f"{r.mechanism} ")) for r in records if r.skipped]
    yield from (Hanging(f"not measured: {line}") for line in _grouped_texts(whys))
    if report.command == "sweep" and (answer := report.summary.get("answer")):
        yield Text(f"{answer}\n", style="bold")


def _conditions(report: Report, records: Sequence[ProfileRecord]) -> str:
    """Return the conditions that all points share; conditions that vary have columns."""
    first, where, columns = records[0], report.environment, varying(records)
    unknown_sizes = first.d_model is None and first.num_heads is None
    texts = {
        "phase": first.phase, "causal": "causal" * first.causal,
        "compiled": "compiled" * first.compiled, "scope": f"scope {first.scope}",
        "batch_size": f"batch {first.batch_size}",
        "d_model": "sizes of its own" if unknown_sizes else f"d_model {first.d_model}",
        "num_heads": "" if first.num_heads is None else f"{first.num_heads} heads",
        "dtype": first.dtype, "device": f"on {first.device}",
    }  # fmt: skip
    same = ", ".join(text for name, text in texts.items() if text and name not in columns)
    machine = f"{where.get('device_name')}, {where.get('threads')} threads"
    return f"{same} ({machine}, torch {where.get('torch')})"


def _ceilings(roofline: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{dtype} {format_rate(r)}" for dtype, r in roofline["flops_per_s"].items())
    moved = format_rate(roofline["bytes_per_s"], "B/s")
    return f"{roofline['device']}: {rates}, {moved} ({roofline['source']})"


def _grouped_texts(pairs: Iterable[tuple[ProfileRecord, str]]) -> Iterator[str]:
    """Yield each text once, after the mechanisms and lengths it belongs to."""
    by_text: dict[str, dict[str, dict[str, None]]] = {}
    for record, text in pairs:
        lengths = by_text.setdefault(text, {}).setdefault(record.mechanism, {})
        lengths[f"{record.seq_len:,}"] = None
    for text, by_name in by_text.items():
        by_lengths: dict[str, list[str]] = {}
        for name, lengths in by_name.items():
            by_lengths.setdefault(" and ".join(lengths), []).append(name)
        places = (f"{', '.join(x)} at {lengths} tokens" for lengths, x in by_lengths.items())
        yield f"{'; '.join(places)}: {text}"


def profile_notes(report: Report) -> list[str]:
    """Return notes on the points for stderr: checks, differences, noise."""
    records = report.of(ProfileRecord)
    notes = [(record, text) for record in records for text in _point_notes(record)]
    uncounted = ((name.removeprefix("aten::"), r) for r in records for name in r.uncounted or {})
    unknown = dict.fromkeys(
        name for name, record in uncounted
        if f"fvcore does not know {name} ×" not in " ".join(record.differences)
    )  # fmt: skip
    calls = f"fvcore has no rule for {', '.join(unknown)}; --format json tells their calls"
    return [*_grouped_texts(notes), *([calls] if unknown else [])]


def _point_notes(record: ProfileRecord) -> Iterator[str]:
    if record.checked:
        checked = record.checked.replace("float64", "a run in float64").replace("; ", " and ")
        yield f"the output agrees with {checked}"
    yield from (text.removeprefix(f"{record.mechanism}: ") for text in record.differences)
    if record.contradicted:
        yield "no FLOP/s and no roofline, for the run contradicts the predicted counts (see above)"
    if record.noisy:
        yield record.noisy


def predict_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a row a point, then the slowest operations of each."""
    records = report.of(kinds.PredictRecord)
    done = named_results(records)
    yield Text(f"{report.summary['made_of']}\n")
    if done:
        keys = ("mechanism", "seq_len", *varying(records))
        title, interval = _kind_of_times(done)
        names = (*keys, "time_s", *interval, "peak_bytes_predicted", "bound")
        caption = report.summary["interval"]
        yield record_table(done, names, keys=len(keys), title=title, caption=caption)
        if any(record.operations for record in done):
            yield _operations(done)
    yield from (Hanging(f"not predicted: {r.skipped}") for r in records if r.skipped)


def _kind_of_times(records: Sequence[Any]) -> tuple[str, tuple[str, ...]]:
    """Return a table's title, and fields of intervals: none where all times are lower bounds."""
    if all(record.ci_high_s is None for record in records):
        return "Predicted: times are at least these", ()
    return "Predicted", ("ci_low_s", "ci_high_s")


def _operations(records: Sequence[kinds.PredictRecord]) -> RenderableType:
    """Return a row for each of the slowest operations of every point."""
    most = SHOWN if len(records) == 1 else FEW
    cells = (
        [record.mechanism, format_count(record.seq_len), row["name"],
         "×".join(map(str, row["sizes"])), format_count(row["calls"]),
         shown_value(row["time_s"], "time"), f"{row['time_s'] / (record.time_s or 1):.0%}",
         row["bound"]]
        for record in records
        for row in record.operations[:most]
    )  # fmt: skip
    headings = ("mechanism", "seq", "operation", "sizes", "calls", "time", "share", "bound")
    right = ("seq", "calls", "time", "share")
    return FittedTable(*headings, rows=cells, keys=3, right=right, title="What takes the time")


def recommend_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the mechanisms that fit by rank, what each gives up, and the rest with reasons."""
    rows = report.of(kinds.RecommendRecord)
    one, ranked = rows[0], [row for row in rows if row.rank is not None]
    yield Text(f"{report.summary['made_of']}\n")
    where = (
        f"{one.scope}, {one.phase}{', causal' * one.causal}, {plural(one.seq_len, 'token')}, "
        f"batch {one.batch_size}, d_model {one.d_model}, "
        f"{plural(one.num_heads, 'head')}, {one.dtype}"
    )
    title, interval = _kind_of_times(ranked)
    names = ("rank", "mechanism", "exact", "time_s", *interval, "peak_bytes")
    title, caption = f"{title}\n{where}", report.summary["interval"]
    yield record_table(ranked, names, title=title, keys=2, caption=caption)
    for loss, losing in grouped(ranked, lambda row: row.gives_up).items():
        if loss:
            yield Hanging(f"{', '.join(row.mechanism for row in losing)}: {loss}")
    yield from (Hanging(f"{r.mechanism} left out: {r.skipped}") for r in rows if r.rank is None)
    without = ", no exact one fits" * any(row.exact for row in rows)
    for span in report.summary["fastest"]:
        fastest, exact = span["fastest"], span["exact"]
        rival = f" of all, {exact} the fastest exact one" if exact else without
        more = "" if exact == fastest else rival
        ends = dict.fromkeys((f"{span['from']:,}", f"{span['to']:,}"))
        yield Hanging(f"{' to '.join(ends)} tokens: {fastest} is the fastest{more}")


def calibrate_tables(report: Report) -> list[RenderableType]:
    """Return a row a number format."""
    columns = (
        "device_name", "threads", "dtype", "flops_per_s", "bytes_per_s", "operations",
        "repeatability",
    )  # fmt: skip
    made_of = report.summary.get("made_of")
    caption = made_of and f"predictions: {made_of}"
    return [record_table(report.records, columns, title="Ceilings measured", caption=caption)]


def doctor_tables(report: Report) -> list[RenderableType]:
    """Return a row a check, with advice."""
    problems = report.summary["problems"]
    verdict = f"Needs attention: {', '.join(problems)}." if problems else "Everything works."
    columns: dict[str, terminal.Cell] = {
        "check": "check", "status": lambda r: Text(r.status, STYLES.get(r.status, "red")),
        "found": lambda r: r.found + (f" → {r.advice}" if r.advice else ""),
    }  # fmt: skip
    return [record_table(report.records, columns, caption=verdict)]


def tradeoff_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a table an input, nearest first; then skipped candidates, and the columns' meaning."""
    if report.command != "tradeoff":
        yield from _distill_tables(report)
        return
    records = report.of(TradeoffRecord)
    yield from map(Hanging, report.summary["nearest"])
    yield ""
    for _, group in groupby(records, key=lambda r: (r.input, r.norms)):
        yield _by_error(list(group))
    yield from map(Hanging, [*_not_compared(records), *_meanings(report)])
    yield Text(MEANING, style="dim")


def tradeoff_page(report: Report, **_how: object) -> str:
    """Return the records as a Markdown table; of 003's experiment the claims, too."""
    text = render_markdown(report)
    if report.command == "tradeoff":
        return text
    rows = ([markdown_text(cell) for cell in row] for row in claim_rows(report))
    return f"{text}\n{markdown_table(CLAIMS, rows)}"


def _by_error(rows: Sequence[TradeoffRecord]) -> FittedTable:
    """Return the table of one input, the smallest error first."""
    done, first = named_results(rows), rows[0]
    norms = f", norms: {first.norms}" if first.norms else ""
    sizes = f"batch {first.batch_size}, seq {first.seq_len:,}, {plural(first.num_heads, 'head')} "
    title = (
        f"{first.input}{norms}: {sizes}of {first.head_dim}{', causal' * first.causal}, times in "
        f"{first.dtype} on {first.device}"
    )
    done.sort(key=lambda row: row.error_relative or 0.0)
    names: dict[str, terminal.Cell] = {
        "mechanism": lambda row: f"{row.mechanism}{' *' * bool(row.pareto)}", "is": "relation",
    }  # fmt: skip
    shown = _filled_columns(done, COLUMNS, _error_cell)
    return record_table(done, {**names, **shown}, right=shown, title=title)


def _filled_columns(
    records: Sequence[Any], columns: Mapping[str, str], cell: Callable[..., str]
) -> dict[str, terminal.Cell]:
    """Return the columns in which a record has a value, by heading."""
    return {
        heading: partial(cell, name=name) for name, heading in columns.items()
        if any(cell(record, name) != MISSING for record in records)
    }  # fmt: skip


def _error_cell(row: TradeoffRecord, name: str) -> str:
    if name == "spread":
        ends = map(_error, (row.error_relative_low, row.error_relative_high))
        return MISSING if row.seeds < 2 else " to ".join(ends)
    return _error(getattr(row, name)) if name.startswith("error") else field_text(row, name)


def _error(value: float | None) -> str:
    """Return a share in three digits; in one digit if it is tiny."""
    if value is None:
        return MISSING
    return f"{value:.0e}" if 0 < value < 1e-4 else shown_value(float(value), "number")


def _not_compared(records: Sequence[TradeoffRecord]) -> Iterator[str]:
    """Yield each reason once, with the mechanisms, and with the inputs if it is not for all."""
    inputs = {(row.input, row.norms) for row in records}
    without = [row for row in records if row.skipped]
    reasons = grouped(without, lambda row: (row.skipped or "").removeprefix(f"{row.mechanism} "))
    for reason, rows in reasons.items():
        skipped = {(row.input, row.norms) for row in rows}
        names = sorted(f"{name}{f' ({norms})' if norms else ''}" for name, norms in skipped)
        where = f" ({joined(names)})" if len(skipped) < len(inputs) else ""
        yield f"not compared{where}: {joined(dict.fromkeys(r.mechanism for r in rows))}: {reason}"


def _meanings(report: Report) -> Iterator[str]:
    """Yield how the mechanisms that ran are related to softmax attention."""
    mechanisms = {row.mechanism for row in report.of(TradeoffRecord) if row.skipped is None}
    relations = {n: pair for n, pair in report.summary["relations"].items() if n in mechanisms}
    for (kind, why), names in grouped(relations, lambda name: tuple(relations[name])).items():
        unknown = "it does not say what it is to softmax attention"
        yield f"{joined(names)}: {f'{kind}: {why}' if kind else unknown}"


def _distill_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a table a setting; then a row a claim."""
    records, scale = report.of(DistillRecord), report.summary["scale"]
    for setting, named in SETTINGS.items():
        if rows := [row for row in records if row.setting == setting]:
            sizes = f"trained at {scale['tokens']} tokens, width {scale['width']}"
            seeds = plural(max(row.seeds for row in rows), "seed")
            done = [row for row in rows if row.skipped is None]
            shown = _filled_columns(done, TRAINED, _student_cell)
            columns: dict[str, terminal.Cell] = {"seq": lambda row: str(row.seq_len), **shown}
            title, names = f"{named}; {sizes}, {seeds}", {"model": "model", **columns}
            yield record_table(done, names, right=columns, title=title, keys=2)
    for row in records:
        if row.skipped:
            where = f"{row.setting}, {row.model} at {row.seq_len} tokens"
            yield Hanging(f"not run: {where}: {row.skipped}")
    yield ""
    yield FittedTable(*CLAIMS, rows=claim_rows(report), title="What 003 claims")
    yield Text(OF_STUDENTS, style="dim")


def _student_cell(row: DistillRecord, name: str) -> str:
    if name == "spread":
        ends = (row.cross_entropy_low, row.cross_entropy_high)
        both = [shown_value(end, "number") for end in ends if end is not None]
        return " to ".join(both) if row.seeds > 1 and both else MISSING
    return field_text(row, name)


def claim_rows(report: Report) -> list[list[str]]:
    """Return a row a claim: its words, whether the conditions suffice, the result."""
    return [
        [one["claim"], one["says"], f"{'yes' if one['suffices'] else 'no'}: {one['conditions']}",
         one["came_out"]]
        for one in report.summary["claims"]
    ]  # fmt: skip
