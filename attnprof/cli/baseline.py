"""``attnprof baseline``: what a suite counts and takes now, to compare with later."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from attnprof.cli import gate_options as gate
from attnprof.cli import options as opt
from attnprof.cli import sweep_options as of
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, ensure_writable, note
from attnprof.errors import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from attnprof.record import Report

BaselineOutput = Annotated[
    Path, Option("-o", "--output", metavar="FILE", help="The baseline, as JSON.")
]


def baseline(
    *,
    suite: gate.SuiteOption = None,
    attention: opt.AttentionOption = None,
    seq: opt.SeqOption = None,
    d_model: of.DModelsOption = None,
    heads: of.HeadsOption = None,
    batch: of.BatchesOption = None,
    phase: of.PhasesOption = None,
    dtype: of.DtypesOption = None,
    device: of.DevicesOption = None,
    settings: opt.SetOption = None,
    args: opt.ArgOption = None,
    inputs: opt.InputOption = None,
    time: gate.TimeOption = True,
    formula: gate.FormulaOption = True,
    limit: gate.LimitOption = None,
    output: BaselineOutput = Path("baseline.json"),
    fmt: opt.FormatOption = Format.TABLE,
    force: opt.ForceOption = False,
) -> int:
    """Record FLOPs, memory, operations, closed forms and times of a suite into one file.

    Example: attnprof baseline --suite bench.toml -o baseline.json
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    ensure_writable(output, force=force)
    texts = {"attention": attention, "seq": seq, "d_model": d_model, "heads": heads,
             "batch": batch, "phase": phase, "dtype": dtype, "device": device}  # fmt: skip
    from attnprof.gate.checking import record_baseline
    from attnprof.gate.terms import Terms
    from attnprof.gate.trees import current_tree

    terms = Terms(timed=time, formulas=formula, limit_s=limit)
    cases = gate.cases_of(suite, texts, (settings or [], args or [], inputs or []), limit)

    with gate.told("recording") as tell:
        report = record_baseline(cases, current_tree(), terms, tell)
    report.save(output)
    deliver(report, fmt, None, tables)
    note(f"wrote {output}; compare with it: attnprof check --baseline {output}")
    failed = report.summary["failed"]
    for record in report.records:
        if error := getattr(record, "error", None):
            note(f"{record.case}: {error}")  # type: ignore[attr-defined]
    return CannotRunError.exit_code if failed else 0


def tables(report: Report) -> Sequence[RenderableType]:
    """A line a case."""
    from attnprof.render.gate.baseline import baseline_tables

    return baseline_tables(report)
