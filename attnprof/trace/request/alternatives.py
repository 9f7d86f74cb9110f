"""Find guesses with which code runs: first guesses, those of a surrounding model, repaired ones.

Where none does, the error says what the code takes, what was tried and what to type.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from shlex import quote
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.trace.request import signatures
from attnprof.trace.request.given import Request, UnguessedError, shown
from attnprof.trace.request.parents import uses
from attnprof.trace.request.target import EVEN, Input, Target
from attnprof.trace.request.texts import parse_inputs
from attnprof.trace.request.tries import Build, Tries
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import outcome
from attnprof.trace.run.worlds import UnsupportedTensorError
from attnprof.user_code import error_text

#: Repairs tried at most, and seconds of processor time for all of them.
_TRIES, _SECONDS = 64, 8.0
#: Operations of each run.
_OPERATIONS = 3000
#: Tokens at which a guess is tried: tables may be shorter.
_LENGTHS, _LONGER = (256, 64, 12), (1024,)
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
    except UnguessedError:
        if target := _as_model_calls_it(build, request, subject, set(), have=True):
            return target
        raise


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


def failure(target: Target, *, longer: bool = False) -> Exception | None:
    """Return what a forward pass raises first, or None if it runs at one of a few lengths.

    An operation that needs values of tensors is no failure: the code runs. With ``longer``, 1,024
    tokens are tried, too.
    """
    sizes = {name: {**EVEN, "B": 3}.get(name, 16) for name in target.symbols}
    first_error: Exception | None = None
    lengths = (*_LENGTHS, *_LONGER) if longer else _LENGTHS
    for length in lengths if "N" in sizes else (0,):
        shape = {**sizes, "N": length} if length else sizes
        failed = outcome(target, shape, training=False, most=_OPERATIONS)
        inside = type(failed).__module__.startswith("torch.")
        inside = inside or isinstance(failed, UnsupportedTensorError)
        if not isinstance(failed, Exception) or isinstance(failed, TooLongError) or inside:
            return None
        first_error = first_error or failed
    return first_error


def advice(
    subject: Any, request: Request, target: Target, tries: Sequence[Any], error: Exception
) -> str:
    """Return the end of an error message: the signature, other guesses tried, what to type."""
    what, forward = request.what, getattr(subject, "forward", None)
    taken = f"{what}({_parameters(subject)})"
    taken += f", {what}.forward({_parameters(forward)})" if forward else ""
    more = f"; nor with {'; '.join(map(str, tries[:3]))}" if tries else ""
    count = f" and {len(tries) - 3} other guesses" if len(tries) > 3 else ""
    inputs = {item.name: item for item in target.inputs}
    return (
        f"{_hint_on_called_none(subject, request, error)}it takes {taken}{more}{count}; "
        f"say what is otherwise: {_command(request, inputs)}"
    )


def _hint_on_called_none(subject: Any, request: Request, error: Exception) -> str:
    """Return a hint if the code calls an argument that is None by default, else ""."""
    unset = [
        name
        for name, item in signatures.parameters_of(subject, "").items()
        if item.default is None and name not in request.given and name not in ("device", "dtype")
    ]
    if "'NoneType' object is not callable" not in str(error) or not unset:
        return ""
    return (
        f"it calls what is None by default ({', '.join(unset)}): point at a function of yours that "
        f"returns the module with those, like def make(dim, num_heads); "
    )


def _command(request: Request, inputs: Mapping[str, Input]) -> str:
    """Return the command that derives a request with these inputs."""
    args = [text for text, flag in request.guessed.items() if flag == "--arg"]
    args += [f"{name}={shown(value)}" for name, value in request.given.items()]
    options = [
        *(f"--arg {quote(text)}" for text in dict.fromkeys(args)),
        *(f'--input "{item.spelled}"' for item in inputs.values()),
    ]
    return f"attnprof derive {request.name} {' '.join(options)}"


def _parameters(function: Any) -> str:
    """Return a signature's parameters as text: ``dim, heads=8``."""
    return ", ".join(
        str(item).partition(":")[0] if item.default is item.empty else f"{name}={item.default!r}"
        for name, item in signatures.parameters_of(function, "").items()
        if name != "self"
    )
