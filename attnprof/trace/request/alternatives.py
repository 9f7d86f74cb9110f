"""Other guesses where the first ones do not run, until some do."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.trace.request.advice import advice, failure, led_on
from attnprof.trace.request.given import Request, UnguessedError
from attnprof.trace.request.parents import uses
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_inputs
from attnprof.trace.request.tries import Build, Tries
from attnprof.user_code import error_text

#: Tries, and the seconds that they may take together.
_TRIES, _SECONDS = 64, 8.0
_ALONE = ContextVar("alone", default=False)
#: What an error says where others might do.
UNTRIED = "no other inputs were tried"


@contextmanager
def first_guesses_alone() -> Iterator[None]:
    """Inside, no other guesses are tried: what does not run with the first ones fails at once."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def working(build: Build, request: Request, subject: Any) -> Target:
    """The target of a request; where its guesses do not run, one of other guesses that do.

    Where none does it is the first, with advice.
    """
    if _ALONE.get():
        return _as_guessed_first(build, request)
    try:
        return _repaired(build, request, subject)
    except UnguessedError as unknown:
        if found := _as_used(build, request, subject, set(), have=True):
            return found
        mend = partial(_repaired, build, subject=subject)
        return led_on(build, request, unknown, mend, adopted=isinstance(subject, type))


def _as_guessed_first(build: Build, request: Request) -> Target:
    """The target by the first guesses; RequestError with what it raises where it does not run."""
    try:
        target = build(request)
    except UnguessedError as unknown:
        raise RequestError(f"{unknown}; {UNTRIED}") from unknown
    if error := failure(target) if request.guessed else None:
        inputs = "; ".join(target.spelled_inputs) or "no input"
        raised = f"{error_text(error)}: {target.name} does not run with {inputs}"
        raise RequestError(f"{raised}; {UNTRIED}") from error
    return target


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
