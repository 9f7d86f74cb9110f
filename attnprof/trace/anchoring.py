"""The shape around which runs are interpolated: one that runs, in few operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnprof.errors import AttnprofError
from attnprof.trace.loading import told
from attnprof.trace.probing import NotPolynomialError
from attnprof.trace.shots import OutOfBudgetError, Shots, TooLongError

#: Sizes that divide what code likes to be divided.
_EVEN = {"B": 2, "N": 512, "h": 4, "d": 32}
#: A run of more operations is tried at smaller sizes.
_MANY = 250
#: Tokens of which a loop over them would take too many operations.
_LONG = 4096


class NotRunningError(Exception):
    """The code raises at every shape that was tried: ``cause`` at the first one."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"it does not run: {told(cause)}")
        self.cause = cause


def anchored(shots: Shots, hints: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """The hints if the code runs there, or even sizes; smaller ones where they spare operations.

    Sizes of 1 stay. Raises :class:`NotPolynomialError` with what the code raised at all of them.
    """
    failure: Exception = NotPolynomialError("no shape to start from")
    for sizes in _starts(hints, asked):
        if isinstance(failure, TooLongError) and sizes.get("N", 0) >= _LONG:
            continue  # a loop over tokens: fewer heads would not help
        try:
            calls = shots.operations(sizes)
        except (AttnprofError, OutOfBudgetError):
            raise
        except TooLongError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            if isinstance(failure, NotPolynomialError):
                failure = error
        else:
            return _smaller(shots, sizes, calls)
    if isinstance(failure, TooLongError):
        raise NotPolynomialError(str(failure)) from failure
    raise NotRunningError(failure) from failure


def _starts(hints: Mapping[str, int], asked: Mapping[str, int]) -> Iterator[dict[str, int]]:
    yield dict(hints)
    yield {name: asked.get(name) or _EVEN.get(name, 16) for name in hints}
    few = {name: min(size, 2) if name not in ("N", "d") else size for name, size in hints.items()}
    yield few
    for length in _less(few.get("N", 2)):
        yield {**few, "N": length}


def _less(size: int) -> Iterator[int]:
    """Smaller sizes to try; long ones in their class modulo 256, at last modulo 64."""
    if size < 64:
        yield 2
        return
    rest = size % 256
    while size >= 512 + rest:
        size = rest + 256 * max(1, size // 1024)
        yield size
    yield size % 64 + 64 * int(size % 64 < 32)


def _smaller(shots: Shots, sizes: dict[str, int], calls: int) -> dict[str, int]:
    """The same with sizes made small one after the other, where a run takes many operations."""
    best = sizes
    for name in sorted(sizes, key=lambda name: sizes[name]):
        for least in _less(best[name]):
            # below 256 tokens code in blocks is often another branch: only where it must be
            if calls <= (_MANY if least >= 256 or least == 2 else 2 * _MANY) or least >= best[name]:
                continue
            fewer = _operations(shots, {**best, name: least})
            if fewer is None or fewer > 0.8 * calls:
                break
            best, calls = {**best, name: least}, fewer
    return best


def _operations(shots: Shots, sizes: Mapping[str, int]) -> int | None:
    try:
        return shots.operations(sizes)
    except OutOfBudgetError:
        raise
    except Exception:  # noqa: BLE001 - the user's code may raise anything
        return None
