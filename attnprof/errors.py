"""The one family of errors; each carries the exit code a command ends with."""

from collections.abc import Sequence


class AttnprofError(Exception):
    """An error whose message says what was asked, what is possible and what to type.

    ``exit_code`` is that of a command which it ends.

    >>> try:
    ...     attnprof.Workload(0, num_heads=8, head_dim=64)
    ... except attnprof.AttnprofError as error:
    ...     print(f"{error} (exit code {error.exit_code})")
    seq_len must be at least 1, not 0 (exit code 2)
    """

    exit_code = 70


class RequestError(AttnprofError):
    """The request itself is wrong: a bad value, an unknown name, an unwritable output."""

    exit_code = 2


class NotFoundError(RequestError):
    """The file, module, name or mechanism of the request does not exist."""


class CannotRunError(AttnprofError):
    """The request is fine and cannot be met here: no such device, out of memory."""

    exit_code = 3


class CheckFailedError(AttnprofError):
    """A check was made and failed: a regression, a replay that does not match."""

    exit_code = 1


def together(errors: Sequence[AttnprofError]) -> AttnprofError:
    """Return one error with all messages, each once, and the least of the exit codes."""
    messages = list(dict.fromkeys(map(str, errors)))
    more = [f"and {len(messages) - 5} more"] if len(messages) > 5 else []
    kind = type(min(errors, key=lambda error: error.exit_code))
    return kind("; ".join([*messages[:5], *more]))


def closest(typed: str, possible: list[str]) -> str:
    """Return a ``did you mean`` for a misspelt name, or the list of possible names."""
    from difflib import get_close_matches

    near = get_close_matches(typed, possible, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"possible: {', '.join(possible)}" if possible else "there is none"
