"""Other guesses where the first ones do not run, until some do."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.request.advice import advice, failure, led_on
from attnprof.trace.request.given import Request, UnguessedError
from attnprof.trace.request.parents import uses
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_inputs
from attnprof.trace.request.tries import Build, Tries
from attnprof.user_code import error_text

#: Tries, and the seconds that they may take together.
_TRIES, _SECONDS = 64, 8.0


def working(build: Build, request: Request, subject: Any) -> Target:
    """The target of a request; where its guesses do not run, one of other guesses that do.

    Where none does it is the first, with advice.
    """
    try:
        return _repaired(build, request, subject)
    except UnguessedError as unknown:
        if found := _as_used(build, request, subject, set(), have=True):
            return found
        mend = partial(_repaired, build, subject=subject)
        return led_on(build, request, unknown, mend, adopted=isinstance(subject, type))


def _as_used(
    build: Build, request: Request, subject: Any, free: set[str], *, have: bool
) -> Target | None:
    """The target as a model beside it that has these sizes, or not, uses it; if it then runs."""
    if not isinstance(subject, type):
        return None
    for model, repair in uses(subject, request, free, have=have):
        instead = request.instead(repair.args, parse_inputs(repair.inputs))
        with suppress(AttnprofError):
            found = build(instead)
            if failure(found, longer=True):
                continue
            note = f"what it is called with is what {model} calls it with"
            return replace(found, notes=(*found.notes, note))
    return None


def _repaired(build: Build, request: Request, subject: Any) -> Target:
    target = build(request)
    error = failure(target) if request.guessed else None
    if error is None:
        return target
    free = {*target.symbols}
    if used := _as_used(build, request, subject, free, have=True):
        return used
    tries = Tries(build, request, subject, failure, _TRIES, _SECONDS)
    if found := tries.until_one_runs(target, error):
        first = "; ".join(target.spelled_inputs) or "no input"
        note = f"tried first: {first}: {error_text(error)}"
        return replace(found, notes=(*found.notes, note))
    if used := _as_used(build, request, subject, free, have=False):
        return used
    return replace(target, advice=advice(subject, request, target, tries.seen, error))
