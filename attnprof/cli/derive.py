"""``attnprof derive``: closed forms from running code."""

from typing import Annotated, Any

from typer import Argument, Option

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.kept import KeptReport
from attnprof.cli.request import parse_named_sizes, parse_set, some_of
from attnprof.errors import RequestError
from attnprof.record.report import Report
from attnprof.user_code import check_place, is_place
from attnprof.workload import PHASES

BY = ("operation", "line", "module")
ByOption = Annotated[str, Option(
    metavar="WHAT", callback=lambda value: opt.one_of(value, BY, "--by"),
    help="Where costs arise: by operation, line or module.",
)]  # fmt: skip
EXAMPLE = "attnprof derive my.py:MyAttention"


def derive(
    *,
    target: str | None = Argument(
        None, metavar="TARGET",
        help="path.py:Name, package.module:Name (a module class, a module, a function), "
        "or a mechanism of attnprof list.",
    ),
    modules: opt.Modules,
    phase: str | None = opt.flag(
        "PHASES", "Of forward, backward, train (both), decode.", show_default="forward,backward"
    ),
    at: list[str] | None = opt.flag(
        "SIZES", "Numbers, too, at a shape: B=1,N=4096,h=8,d=64; repeatable."
    ),
    quantity: opt.QuantityOption = None,
    scope: opt.OwnScopeOption = None,
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    settings: opt.SetOption = None,
    by: ByOption = "operation",
    latex: bool = opt.switch("--latex", "Show the formulas in LaTeX."),
    to: opt.Output,
) -> None:  # fmt: skip
    """Derive closed forms from your own torch code.

    TARGET is a module class, a module, a function or a mechanism. It runs on fake tensors of
    symbolic sizes, and of a few numbers where code insists on some; runs at other shapes check
    every formula. Arguments and inputs that you leave out are guessed, and the guesses printed.

    Examples:
      attnprof derive my.py:MyAttention
      attnprof derive my.py:MyAttention --at B=1,N=4096,h=8,d=64
      attnprof derive my.py:A --arg d_model=h*d --input "x: B, N, h*d" --by module
      attnprof derive linear --scope core --phase forward
    """
    if target is None:
        raise RequestError(f"derive needs what to derive: type {EXAMPLE}")
    (check_place if is_place(target) else registry.derivable)(target)
    phases = some_of("forward,backward" if phase is None else phase, PHASES, "--phase")
    numbers = parse_named_sizes(at)
    options: dict[str, Any] = {
        "params": parse_set(settings), "scope": scope, "causal": causal, "dtype": dtype,
    }  # fmt: skip
    more = {"in_steps": to.fmt == opt.Format.MARKDOWN, "with_curves": to.fmt == opt.Format.HTML}
    texts = modules.args, modules.inputs, modules.config
    kept = KeptReport(target, texts, phase, numbers, quantity, options, more)
    report = kept.read()
    for line in kept.notes:
        opt.note(line)
    if report is None:
        derivation, report = _derived_report(
            target, modules, phases, numbers, forward_at_least=phase is None,
            quantity=quantity, notes=kept.notes, options=options, more=more,
        )  # fmt: skip
        if list(derivation.phases) == phases:  # else a note was printed that would be lost
            kept.write(report, modules.config)
    to.deliver(report, latex=latex, by=by)


def _derived_report(
    target: str, modules: Any, phases: list[str], numbers: Any, *, forward_at_least: bool,
    quantity: str | None, notes: list[str], options: Any, more: Any,
) -> tuple[Any, Report]:  # fmt: skip
    """Derive the target and return it with its report; guesses are noted."""
    from attnprof.trace.events import QUANTITIES
    from attnprof.trace.report.records import report_of
    from attnprof.trace.request.lookup import target_of

    quantities = some_of(quantity, QUANTITIES, "--quantity")
    with opt.working(f"calling {target}"):
        subject = target_of(target, modules.args, modules.inputs, **options)
    for line in subject.notes:
        opt.note(line)
    with opt.working(f"deriving {target}: {', '.join(phases)}"):
        derivation = _derive_phases(subject, phases, numbers, forward_at_least=forward_at_least)
        import torch

        where = opt.environment(torch=torch.__version__)
        report = report_of(derivation, quantities, environment=where, **more, **options)
    for line in derivation.notes[len(subject.notes) :]:
        opt.note(line)
    notes += derivation.notes
    return derivation, report


def _derive_phases(target: Any, phases: list[str], numbers: Any, *, forward_at_least: bool) -> Any:
    """Return the derivation; of the forward pass alone if the default phases cannot all run."""
    from attnprof.trace.solve.count import NoBackwardError
    from attnprof.trace.solve.derive import derived
    from attnprof.trace.solve.small_runs import ChanceError

    try:
        return derived(target, phases, numbers)
    except (NoBackwardError, ChanceError) as error:
        if not forward_at_least or not error.in_training:
            raise
        opt.note(f"only the forward pass: {str(error).rpartition(';')[0]}")
        return derived(target, ("forward",), numbers)
