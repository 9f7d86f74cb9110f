"""``attnprof check``: fail when FLOPs, memory or time got worse."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from attnprof.cli.output import Output, append, ensure_writable, note
from attnprof.cli.suites import Suite
from attnprof.errors import CannotRunError, RequestError
from attnprof.record import Report, write_whole
from attnprof.record.destinations import reading_back, take_modules
from attnprof.render.progress import working

if TYPE_CHECKING:
    from attnprof.gate.cases import Case
    from attnprof.gate.rules import CheckOptions

EXAMPLE = "attnprof check --against origin/main --suite bench.toml"

BaselineOption = Annotated[
    Path | None,
    Option("--baseline", metavar="FILE", help="What attnprof baseline wrote.", show_default=False),
]
AgainstOption = Annotated[
    str | None,
    Option(
        "--against", metavar="REF|DIR", show_default=False,
        help="Other code, run in turns with this one: a git revision or a folder.",
    ),
]  # fmt: skip
RuleOption = Annotated[
    str | None,
    Option("--rule", metavar="RULE", help="sensitive, default or lenient; else each case's own."),
]
InconclusiveOption = Annotated[
    str,
    Option(
        "--inconclusive", metavar="POLICY",
        help="An open result in time: retry (in the budget, then pass), pass, or fail (exit 3).",
    ),
]  # fmt: skip
BudgetOption = Annotated[
    float, Option("--budget", metavar="SECONDS", help="For all times together.")
]
StoredOption = Annotated[
    str,
    Option(
        "--stored-times", metavar="WHAT",
        help="Times of a baseline made on this machine: advise, or fail the check.",
    ),
]  # fmt: skip
UpdateOption = Annotated[
    bool, Option("--update", help="Accept: write what is now into the --baseline file.")
]
SelfTestOption = Annotated[
    bool,
    Option("--self-test", help="This machine's own false-alarm and detection rates, measured."),
]
JunitOption = Annotated[
    Path | None, Option("--junit", metavar="FILE", help="JUnit XML, too.", show_default=False)
]
SummaryOption = Annotated[
    Path | None,
    Option("--summary", metavar="FILE", help="The Markdown page, too, for a comment."),
]
VerboseOption = Annotated[bool, Option("--verbose", help="Every metric, not only what changed.")]


def check(
    *,
    baseline: BaselineOption = None,
    against: AgainstOption = None,
    suite: Suite,
    rule: RuleOption = None,
    inconclusive: InconclusiveOption = "retry",
    budget: BudgetOption = 300.0,
    stored_times: StoredOption = "advise",
    update: UpdateOption = False,
    self_test: SelfTestOption = False,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    verbose: VerboseOption = False,
    to: Output,
) -> int:
    """Compare with a revision or a baseline: counts exactly, times in interleaved pairs.

    Example: attnprof check --against origin/main --suite bench.toml
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for flag, path in {"--junit": junit, "--summary": summary}.items():
        ensure_writable(path, force=to.force, flag=flag)
    if update:
        ensure_writable(baseline, force=to.force, flag="--baseline", extended=True)
    from attnprof.gate.rules import CheckOptions

    terms = CheckOptions(
        rule, inconclusive, budget, suite.time, suite.formula, stored_times, limit_s=suite.limit
    )
    if self_test:
        return _self_test(terms, to)
    if baseline is None and against is None:
        raise RequestError(f"check needs --against or --baseline: type {EXAMPLE}")
    if update and baseline is None:
        raise RequestError("--update writes a baseline: say which with --baseline FILE")
    cases = suite.cases() if suite.is_asked() or baseline is None else None
    with working("checking") as tell:
        report = _checked(cases, baseline, against, terms, tell, update=update)
    _outputs(report, junit, summary)
    to.deliver(report, verbose=verbose)
    if update and baseline is not None:
        return _accept(cases, baseline, terms)
    return int(report.summary["exit_code"])


def _checked(
    cases: list[Case] | None, baseline: Path | None, against: str | None, terms: CheckOptions,
    tell: Callable[[str], None], *, update: bool,
) -> Report:  # fmt: skip
    from attnprof.gate.baselines import load_baseline
    from attnprof.gate.check import check_against, check_baseline
    from attnprof.gate.trees import current_tree, tree_of

    with reading_back() if update else nullcontext():
        stored = load_baseline(baseline) if baseline else None
    if cases is None:
        assert stored is not None
        cases = list(stored.cases)
    take_modules(case.request.mechanism for case in cases)
    if against is None:
        assert stored is not None
        return check_baseline(cases, stored, current_tree(), terms, tell, name=str(baseline))
    with tree_of(against) as base:
        return check_against(cases, base, current_tree(), terms, tell, stored)


def _outputs(report: Report, junit: Path | None, summary: Path | None) -> None:
    """Files beside the result, and what GitHub reads; all before the exit code is told."""
    from attnprof.render.gate import render_annotations, render_junit
    from attnprof.render.tables.check import page

    if junit is not None:
        write_whole(junit, render_junit(report))
    if summary is not None:
        write_whole(summary, page(report))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        sys.stderr.write(render_annotations(report))  # stdout is for data; GitHub reads both
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        append(Path(step), page(report))


def _accept(cases: Sequence[Case] | None, path: Path, terms: CheckOptions) -> int:
    """Record anew; the result of the check was shown, and is accepted."""
    from attnprof.gate.baselines import load_baseline
    from attnprof.gate.check import record_baseline
    from attnprof.gate.trees import current_tree

    with working("recording") as tell:
        with reading_back():
            found = list(cases) if cases is not None else list(load_baseline(path).cases)
        report = record_baseline(found, current_tree(), terms, tell)
    report.save(path)
    note(f"accepted: wrote {path}")
    return CannotRunError.exit_code if report.summary["failed"] else 0


def _self_test(terms: CheckOptions, to: Output) -> int:
    """Rates of this machine, as a report of its own."""
    from attnprof.gate.rules import rule_named
    from attnprof.gate.self_test import self_test_report

    with working("racing unchanged and slowed code") as tell:
        report = self_test_report(rule_named(terms.rule or "default"), terms.budget_s, tell)
    to.deliver(report)
    return 0
