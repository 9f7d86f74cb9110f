"""Find guesses with which code runs: first guesses, those of a surrounding model, repaired ones."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.trace.request.advice import advice, failure, run_with_any_values
from attnprof.trace.request.given import Request, UnguessedError
from attnprof.trace.request.parents import uses
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_inputs
from attnprof.trace.request.tries import Build, Tries
from attnprof.user_code import error_text

#: Tries at most, and seconds of processor time for all of them.
_TRIES, _SECONDS = 64, 8.0
_ALONE = ContextVar("alone", default=False)
#: The end of an error message where other guesses might have run.
UNTRIED = "no other inputs were tried"


@contextmanager
def first_guesses_alone() -> Iterator[None]:
    """Try no other guesses inside the context: code that fails with the first ones just fails."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def target_that_runs(build: Build, request: Request, subject: Any) -> Target:
    """Return the target of a request, with other guesses if the code fails with the first ones.

    If it fails with all of them, the target has the first ones, and ``advice`` on what to type.
    """
    if _ALONE.get():
        return _with_first_guesses(build, request)
    try:
        return _repaired(build, request, subject)
    except UnguessedError as unknown:
        if target := _as_model_calls_it(build, request, subject, set(), have=True):
            return target
        mend = partial(_repaired, build, subject=subject)
        return run_with_any_values(build, request, unknown, mend, adopted=isinstance(subject, type))


def _with_first_guesses(build: Build, request: Request) -> Target:
    """Return the target of the first guesses; RequestError with its error if it does not run."""
    try:
        target = build(request)
    except UnguessedError as unknown:
        raise RequestError(f"{unknown}; {UNTRIED}") from unknown
    if error := failure(target) if request.guessed else None:
        inputs = "; ".join(target.spelled_inputs) or "no input"
        raised = f"{error_text(error)}: {target.name} does not run with {inputs}"
        raise RequestError(f"{raised}; {UNTRIED}") from error
    return target


def _as_model_calls_it(
    build: Build, request: Request, subject: Any, free: set[str], *, have: bool
) -> Target | None:
    """Return a target that runs as a model of the same file calls the class, or None.

    ``free`` are the symbols of the first guesses. If ``have``, only models that have all of them as
    symbols, too, are asked; else only the others.
    """
    if not isinstance(subject, type):
        return None
    for model, repair in uses(subject, request, free, have=have):
        changed = request.with_guesses(repair.args, parse_inputs(repair.inputs))
        with suppress(AttnprofError):
            target = build(changed)
            if failure(target, longer=True):
                continue
            note = f"what it is called with is what {model} calls it with"
            return replace(target, notes=(*target.notes, note))
    return None


def _repaired(build: Build, request: Request, subject: Any) -> Target:
    """Return the target of the first guesses, or of others if it fails with those."""
    target = build(request)
    error = failure(target) if request.guessed else None
    if error is None:
        return target
    free = {*target.symbols}
    if used := _as_model_calls_it(build, request, subject, free, have=True):
        return used
    tries = Tries(build, request, subject, failure, _TRIES, _SECONDS)
    if repaired := tries.until_one_runs(target, error):
        first = "; ".join(target.spelled_inputs) or "no input"
        note = f"tried first: {first}: {error_text(error)}"
        return replace(repaired, notes=(*repaired.notes, note))
    if used := _as_model_calls_it(build, request, subject, free, have=False):
        return used
    return replace(target, advice=advice(subject, request, target, tries.seen, error))
