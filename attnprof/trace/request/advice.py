"""Advice for code that does not run as guessed: its signature, what was tried, what to type."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from shlex import quote
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.trace.request import signatures
from attnprof.trace.request.given import Request, UnguessedError, shown
from attnprof.trace.request.target import EVEN, Input, Target
from attnprof.trace.request.texts import as_size, parse_inputs
from attnprof.trace.request.tries import Build
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import outcome
from attnprof.trace.run.unsupported import UnsupportedTensorError
from attnprof.units import joined

#: Tries at most, seconds of processor time for all of them, operations of each.
_TRIES, _SECONDS, _OPERATIONS = 32, 8.0, 3000
#: Tokens at which a guess is tried: tables may be shorter.
_LENGTHS, _LONGER = (256, 64, 12), (1024,)
#: Values to try for an argument or input that nobody can guess, by the flag that gives it.
_ANY = {"--arg": ("64", "h*d", "2", "None"), "--input": ("None", "B, N, h*d", "4", "B, h, N, d")}


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


def _failure_at_other_sizes(target: Target) -> Exception | None:
    """Return what a target raises at other sizes, where a number that fits by chance fails."""
    sizes = {name: {"B": 3, "N": 64, "h": 2, "d": 24}.get(name, 32) for name in target.symbols}
    error = outcome(target, sizes, training=False, most=_OPERATIONS)
    return error if isinstance(error, Exception) else None


def run_with_any_values(
    build: Build, request: Request, unknown: UnguessedError, mend: Build, *, adopted: bool
) -> Target:
    """Return a target that runs with any values for what nobody can guess (``unknown``).

    The values of ``_ANY`` are tried in turn; ``mend`` repairs the first ones if they fail. Unless
    such a target is to be ``adopted``, it is only named in the error. Raises the given
    :class:`UnguessedError` if nothing runs.
    """
    names, message = dict(unknown.names), str(unknown)
    end = time.process_time() + _SECONDS
    for _ in range(2):  # inputs are looked at where the arguments are known
        for values in islice(product(range(len(_ANY["--arg"])), repeat=len(names)), _TRIES):
            chosen = {n: _ANY[flag][i] for (n, flag), i in zip(names.items(), values, strict=True)}
            args = {n: None if x == "None" else as_size(x)
                    for n, x in chosen.items() if names[n] == "--arg"}  # fmt: skip
            inputs = parse_inputs({n: x for n, x in chosen.items() if names[n] == "--input"})
            changed = request.with_guesses(args, inputs)
            try:
                target = mend(changed) if not any(values) else build(changed)
                failed = failure(target) or _failure_at_other_sizes(target)
            except UnguessedError as more:
                names |= more.names
                break
            except AttnprofError:
                continue
            if failed is None and adopted:
                note = f"nothing says what {joined(names)} should be: it runs with this"
                return replace(target, notes=(*target.notes, note))
            if failed is None:
                typed = _command(replace(changed, guessed={}), {x.name: x for x in target.inputs})
                raise RequestError(f"{message}; it runs, for example: {typed}")
            if time.process_time() > end:
                raise unknown
        else:
            break
    raise unknown


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
