"""Numbers at one shape, where no strategy gives formulas; without a shape, what to type."""

from types import SimpleNamespace

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.trace.events import totals_by_phase, trains
from attnprof.trace.request.target import EVEN, Sizes, sizes_text
from attnprof.trace.run.runs import outcome
from attnprof.trace.solve import budget
from attnprof.trace.solve.count import count
from attnprof.trace.solve.strategies import Attempt, Forms
from attnprof.user_code import error_text


def _as_options(sizes: Sizes) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def at_one_shape(attempt: Attempt, given: Sizes) -> Forms:
    """Return numbers at the asked shape; CannotRunError if sizes are missing or the run fails.

    ``given`` are sizes with which there are formulas in the other ones.
    """
    target, asked = attempt.target, attempt.asked
    why = "; ".join(dict.fromkeys(attempt.reasons))
    if not attempt.complete:
        sizes = {name: {**EVEN, **given, **asked}.get(name, 16) for name in target.symbols}
        told = (
            [f"type --at {_as_options({**given, **asked})} for formulas in the other sizes"]
            if given
            else []
        )
        if not isinstance(outcome(target, sizes, training=trains(attempt.phases)), Exception):
            told += [f"type --at {_as_options(sizes)}, say, for numbers at one shape"]
        how = "; ".join(told or ["give all sizes with --at for numbers at one shape"])
        raise CannotRunError(f"{target.name}: no closed form found ({why}); {how}")
    try:
        trace = count(target, asked, attempt.phases[0], budget.A_LONG_RUN)
    except AttnprofError:
        raise
    except Exception as error:
        raise CannotRunError(
            f"{target.name}: no closed form found ({why}), and it cannot be counted at "
            f"{sizes_text(asked)}: {error_text(error)}"
        ) from error
    values = totals_by_phase(trace, attempt.phases)
    nothing: budget.PhaseCounts = {phase: {} for phase in attempt.phases}
    here = {"holds": lambda sizes: sizes == asked, "domain": (sizes_text(asked),)}
    found = SimpleNamespace(forms=nothing, trace=trace, withheld={}, **here)
    return attempt.phase_forms("counted", found, [asked], [], values)
