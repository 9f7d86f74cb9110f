"""``attnprof baseline``: what a suite counts and takes now, to compare with later."""

import os
from pathlib import Path

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.measurement import Suite
from attnprof.cli.options import working
from attnprof.errors import CannotRunError
from attnprof.record import BaselineRecord


def baseline(
    *,
    suite: Suite,
    output: Path = Option(
        Path("baseline.json"), "-o", "--output", metavar="FILE", help="The baseline, as JSON."
    ),
    to: opt.ToStdout,
) -> int:
    """Record what a suite of cases counts and takes, for check.

    FLOPs, memory, operations, closed forms and times, in one file.

    Examples:
      attnprof baseline --suite bench.toml -o baseline.json
      attnprof baseline -a my.py:MyAttention --seq 512 --no-time
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    opt.ensure_writable(output, force=to.force)
    with working("reading the suite"):
        cases = suite.cases()
    from attnprof.gate.check import record_baseline
    from attnprof.gate.rules import CheckOptions
    from attnprof.gate.trees import current_tree

    terms = CheckOptions(timed=suite.time, formulas=suite.formula, limit_s=suite.limit)
    with current_tree(limit_s=terms.limit_s) as head, working("recording"):
        report = record_baseline(cases, head, terms)
    report.save(output)
    to.deliver(report)
    opt.note(f"wrote {output}; compare with it: attnprof check --baseline {output}")
    for record in report.of(BaselineRecord):
        if record.error:
            opt.note(f"{record.case}: {record.error}")
    return CannotRunError.exit_code if report.summary["failed"] else 0
