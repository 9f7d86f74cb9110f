"""``attnprof derive``: closed forms from running code."""

import sys
from contextlib import redirect_stdout
from typing import Any

from typer import Argument, Option

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.request import parse_named_sizes, parse_set, some_of
from attnprof.errors import RequestError
from attnprof.render.progress import working
from attnprof.user_code import check_place, is_place
from attnprof.workload import PHASES

EXAMPLE = "attnprof derive my.py:MyAttention"


def derive(
    *,
    target: str | None = Argument(
        None, metavar="TARGET", show_default=False,
        help="path.py:Name, package.module:Name (a module class, a module, a function), "
        "or a mechanism of attnprof list.",
    ),
    modules: opt.Modules,
    phase: str = Option(
        "forward,backward", metavar="PHASES", help="Of forward, backward, train (both), decode."
    ),
    at: str | None = Option(
        None, metavar="SIZES", help="Numbers, too, at a shape: B=1,N=4096,h=8,d=64."
    ),
    quantity: opt.QuantityOption = None,
    scope: opt.OwnScopeOption = None,
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    settings: opt.SetOption = None,
    latex: bool = Option(False, "--latex", help="Show the formulas in LaTeX."),
    to: opt.Output,
) -> None:  # fmt: skip
    """Derive closed forms from your own torch code.

    TARGET is a module class, a module, a function or a mechanism. It runs on fake tensors of
    symbolic sizes; runs at other shapes check every formula. Arguments and inputs that you leave
    out are guessed, and the guesses printed.

    Examples:
      attnprof derive my.py:MyAttention
      attnprof derive my.py:MyAttention --at B=1,N=4096,h=8,d=64
      attnprof derive my.py:A --arg d_model=h*d --input "x: B, N, h*d"
      attnprof derive linear --scope core --phase forward
    """
    if target is None:
        raise RequestError(f"derive needs what to derive: type {EXAMPLE}")
    (check_place if is_place(target) else registry.derivable)(target)
    phases = some_of(phase, PHASES, "--phase")
    asked = parse_named_sizes(at, "--at")
    how: dict[str, Any] = {
        "params": parse_set(settings), "scope": scope, "causal": causal, "dtype": dtype,
    }  # fmt: skip
    from attnprof.trace.events import QUANTITIES
    from attnprof.trace.report.records import report_of
    from attnprof.trace.request.lookup import target_of
    from attnprof.trace.solve.derive import derived

    with redirect_stdout(sys.stderr):  # what somebody's module prints is no data
        quantities = some_of(quantity, QUANTITIES, "--quantity")
        found = target_of(target, modules.args, modules.inputs, **how)
        for line in found.notes:
            opt.note(line)
        with working(f"deriving {target}: {', '.join(phases)}"):
            derivation = derived(found, phases, asked)
        import torch

        where = opt.environment(torch=torch.__version__)
        in_steps = to.fmt == opt.Format.MARKDOWN
        report = report_of(derivation, quantities, environment=where, in_steps=in_steps, **how)
    to.deliver(report, latex=latex)
