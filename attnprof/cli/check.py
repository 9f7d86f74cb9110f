"""``attnprof baseline`` records costs, ``check`` compares with them, ``history`` finds changes.

``check`` judges counts and times in :mod:`attnprof.gate.check`; here are its options, the files
that it writes besides the result, and a new baseline if ``--update`` accepts the differences.
"""

import errno
import os
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from typer import Argument

from attnprof.cli import options as opt
from attnprof.cli.measurement import Suite
from attnprof.cli.request import parse_names
from attnprof.errors import CannotRunError, RequestError
from attnprof.gate.rules import CheckOptions, rule_named
from attnprof.record import BaselineRecord, Report, write_whole
from attnprof.record.files import kind_of_file, near_file, why_of
from attnprof.record.recognition import check_unlost, reading_back, take_modules

EXAMPLE = "attnprof check --against origin/main --suite bench.toml"


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Options for judging differences, and for files written besides the result."""

    rule: str | None = opt.flag("RULE", "sensitive, default or lenient; else each case's own.")
    inconclusive: str = opt.flag(
        "POLICY", "An open result in time: retry (in the budget, then pass), pass, or fail "
        "(exit 3).", default="retry",
    )  # fmt: skip
    budget: float = opt.flag("SECONDS", "For all times together.", default=300.0)
    stored_times: str = opt.flag(
        "WHAT", "Times of a baseline made on this machine: advise, or fail the check.",
        default="advise",
    )  # fmt: skip
    update: bool = opt.switch("--update", "Accept: write what is now into the --baseline file.")
    self_test: bool = opt.switch(
        "--self-test", "This machine's own false-alarm and detection rates, measured."
    )
    junit: Path | None = opt.flag("FILE", "JUnit XML, too.")
    summary: Path | None = opt.flag("FILE", "The Markdown page, too, for a comment.")
    badge: Path | None = opt.flag("FILE", "JSON for a badge of shields.io, too.")
    verbose: bool = opt.switch("--verbose", "Every metric, not only what changed.")


def check(
    *,
    baseline: Path | None = opt.flag("FILE", "What attnprof baseline wrote."),
    against: str | None = opt.flag(
        "REF|DIR", "Other code, run in turns with this one: a git revision or a folder."
    ),
    suite: Suite,
    flags: CheckFlags,
    to: opt.Output,
) -> int:
    """Fail when FLOPs, memory or time got worse.

    Against another revision, run in turns with the code of this folder, or against a baseline.
    Counts are compared exactly, times in interleaved pairs.

    Examples:
      attnprof check --against origin/main --suite bench.toml
      attnprof check --baseline baseline.json --no-time
      attnprof check --against main -a my.py:MyAttention --seq 512
      attnprof check --self-test
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in ("junit", "summary", "badge"):
        opt.ensure_writable(getattr(flags, name), force=to.force, flag=f"--{name}")
    if flags.update:
        opt.ensure_writable(baseline, force=to.force, flag="--baseline", extended=True)
    terms = CheckOptions(
        flags.rule, flags.inconclusive, flags.budget, suite.time, suite.formula,
        flags.stored_times, limit_s=suite.limit,
    )  # fmt: skip
    if flags.self_test:
        from attnprof.gate.check import self_test_report

        with opt.working("racing unchanged and slowed code"):
            report = self_test_report(rule_named(terms.rule or "default"), terms.budget_s)
        to.deliver(report)
        return 0
    if baseline is None and against is None:
        raise RequestError(f"check needs --against or --baseline: type {EXAMPLE}")
    if flags.update and baseline is None:
        raise RequestError("--update writes a baseline: say which with --baseline FILE")
    return _compare_sides(baseline, against, suite, flags, to, terms)


def _compare_sides(
    baseline: Path | None, against: str | None, suite: Suite, flags: CheckFlags, to: opt.Output,
    terms: CheckOptions,
) -> int:  # fmt: skip
    """Count and time both sides and write the report; with ``--update`` record a new baseline."""
    named = baseline is None or suite.suite is not None or suite.flags()
    with opt.working("reading the suite"):
        cases = suite.cases() if named else []
    if baseline is not None and not baseline.exists():
        hint = near_file(baseline) or f"type attnprof baseline -o {quote(str(baseline))}"
        raise RequestError(f"there is no file {baseline}; {hint}")
    from attnprof.gate.baselines import load_baseline
    from attnprof.gate.check import check_against, check_baseline, record_baseline
    from attnprof.gate.trees import current_tree, tree_of

    with reading_back() if flags.update else nullcontext():
        stored = load_baseline(baseline) if baseline else None
    cases = cases if named or stored is None else [*stored.cases]
    take_modules(case.request.mechanism for case in cases)
    with current_tree(limit_s=terms.limit_s) as head:
        with opt.working("preparing both sides"), ExitStack() as stack:
            if against is not None:
                tree = stack.enter_context(tree_of(against, limit_s=terms.limit_s))
                base = stack.enter_context(tree)
                report = check_against(cases, base, head, terms, stored)
            elif stored is not None:
                report = check_baseline(cases, stored, head, terms, str(baseline))
        _write_outputs(report, flags)
        to.deliver(report, verbose=flags.verbose)
        if flags.update and baseline is not None:  # the differences were shown, and are accepted
            with opt.working("recording"):
                recorded = record_baseline(cases, head, terms)
            recorded.save(baseline)
            opt.note(f"accepted: wrote {baseline}")
            return CannotRunError.exit_code if recorded.summary["failed"] else 0
    return int(report.summary["exit_code"])


def _write_outputs(report: Report, flags: CheckFlags) -> None:
    """Write the files besides the result, and GitHub's annotations, before the command exits."""
    from attnprof.render.gate import render_annotations, render_badge, render_junit
    from attnprof.render.tables.check import check_page

    written = (
        (flags.junit, render_junit), (flags.summary, check_page), (flags.badge, render_badge),
    )  # fmt: skip
    for file, text_of in written:
        if file is not None:
            write_whole(file, text_of(report))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        sys.stderr.write(render_annotations(report))  # stdout is for data; GitHub reads both
    if not (step := os.environ.get("GITHUB_STEP_SUMMARY")):
        return
    path = Path(step)  # other programs write to it as well; a failure is a note
    try:
        if path.exists() and (kind := kind_of_file(path.stat().st_mode)):
            raise OSError(errno.EINVAL, f"it is {kind}")  # noqa: TRY301 - noted below
        check_unlost(path, only_inputs=True)
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(check_page(report))
    except (OSError, ValueError) as error:
        opt.note(f"cannot write the step summary {path}: {why_of(error)}")
    except RequestError as error:
        opt.note(str(error))


def baseline(
    *,
    suite: Suite,
    output: Path = opt.flag(
        "FILE", "The baseline, as JSON.", "-o", "--output", default=Path("baseline.json")
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
    with opt.working("reading the suite"):
        cases = suite.cases()
    from attnprof.gate.check import record_baseline
    from attnprof.gate.trees import current_tree

    terms = CheckOptions(timed=suite.time, formulas=suite.formula, limit_s=suite.limit)
    with current_tree(limit_s=terms.limit_s) as head, opt.working("recording"):
        report = record_baseline(cases, head, terms)
    report.save(output)
    to.deliver(report)
    compared = f"attnprof check --baseline {quote(str(output))}"
    opt.note(f"wrote {output}; compare with it: {compared}")
    for record in report.of(BaselineRecord):
        if record.error:
            opt.note(f"{record.case}: {record.error}")
    return CannotRunError.exit_code if report.summary["failed"] else 0


def history(
    folder: Path = Argument(
        metavar="DIR", help="A folder of results of check or baseline (.json)."
    ),
    *,
    case: str | None = opt.flag("TEXT", "Only cases with this in their name."),
    metric: str | None = opt.flag("NAMES", "Only these, like time,flops."),
    to: opt.DrawnOutput,
) -> None:
    """Find the runs at which saved results reached another level.

    DIR holds results of check or baseline, as JSON.

    Examples:
      attnprof history results
      attnprof history results --metric time --plot history.png
    """
    from attnprof.gate.history import history_report

    how = "type names like time,flops"
    metrics = None if metric is None else parse_names(metric, "--metric", how)
    report = history_report(folder, case, metrics, opt.note)
    to.deliver(replace(report, environment=opt.environment()))
