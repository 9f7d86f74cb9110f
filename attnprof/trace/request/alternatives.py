"""Other guesses where the first ones do not run, until some do."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.request.advice import Build, advice, failure, led_on
from attnprof.trace.request.given import Repair, Request, UnguessedError
from attnprof.trace.request.parents import uses
from attnprof.trace.request.repairs import UNSET, Failed
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_inputs
from attnprof.user_code import error_text

#: Tries, and the seconds that they may take together.
_TRIES, _SECONDS = 64, 8.0
#: How many guesses may be changed at once.
_DEEPEST = 5


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
        raise led_on(build, request, unknown, mend) from None


def _as_used(
    build: Build, request: Request, subject: Any, free: set[str], *, have: bool
) -> Target | None:
    """The target as a model beside it that has these sizes, or not, uses it; if it then runs."""
    if not isinstance(subject, type):
        return None
    for model, repair in uses(subject, request, free, have=have):
        instead = request.instead(repair.args, parse_inputs(repair.inputs))
        found, cause = _tried(build, instead, longer=True)
        if found and cause is None:
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
    waiting = [(Repair(), Failed(subject, request, target, error, target).repairs(), error)]
    seen: list[Repair] = []
    end = time.process_time() + _SECONDS
    while waiting and len(seen) < _TRIES and time.process_time() < end:
        change, repairs, why = waiting[0]
        repair = next(repairs, None)
        if repair is None:
            waiting.pop(0)
        elif (ours := change | repair) not in seen:
            seen.append(ours)
            found, cause = _tried(build, request.instead(ours.args, parse_inputs(ours.inputs)))
            if found and cause is None:
                first = "; ".join(target.spelled_inputs) or "no input"
                note = f"tried first: {first}: {error_text(error)}"
                return replace(found, notes=(*found.notes, note))
            if found and cause and len(ours) < _DEEPEST:
                lacking = UNSET.search(str(why)) or "NoneType" in str(cause)
                further = lacking and str(cause) != str(why)
                failed = Failed(subject, request, found, cause, target, ours)
                more = ours, failed.repairs(), cause
                waiting.insert(0 if further else len(waiting), more)
    if used := _as_used(build, request, subject, free, have=False):
        return used
    return replace(target, advice=advice(subject, request, target, seen, error))


def _tried(
    build: Build, request: Request, *, longer: bool = False
) -> tuple[Target | None, Exception | None]:
    try:
        target = build(request)
    except AttnprofError:
        return None, None
    return target, failure(target, longer=longer)
