"""Concrete runs of a target, remembered, within a budget of operations; where to start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnprof.errors import AttnprofError
from attnprof.trace.events import Trace
from attnprof.trace.request.expressions import EVEN_ANCHOR
from attnprof.trace.request.target import Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import record
from attnprof.user_code import error_text

#: Operations that all runs of one interpolation may take, and one run of them.
BUDGET, A_RUN = 50_000, 5_000
#: What a run costs besides its operations, in operations.
_OVERHEAD = 40


class OutOfBudgetError(Exception):
    """Interpolating would take too many operations."""


class NotInterpolatedError(Exception):
    """No class of sizes gives a polynomial; ``name`` is the size in which the cost is none."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class BudgetedRuns:
    """Runs at shapes: first on fake tensors; on meta tensors (faster) where both do the same."""

    def __init__(self, target: Target, *, training: bool, budget: int = BUDGET) -> None:
        self._target, self._training = target, training
        self._left = budget
        self._swift = False
        self._seen: dict[tuple[tuple[str, int], ...], Trace | Exception] = {}

    def settle(self, sizes: Mapping[str, int]) -> None:
        """Use meta tensors from here on if a run there does what a run on fake tensors does."""
        fake = self.at(sizes)
        try:
            swift = self._recorded(sizes, swift=True)
        except Exception:  # noqa: BLE001 - whatever the user's code does there, fake tensors serve
            return
        self._swift = swift.calls == fake.calls and swift.parameters == fake.parameters

    def at(self, sizes: Mapping[str, int]) -> Trace:
        """The run at a shape; what it raised, again, where it did."""
        key = tuple(sorted(sizes.items()))
        if key not in self._seen:
            try:
                self._seen[key] = self._recorded(sizes, swift=self._swift)
            except OutOfBudgetError:
                raise
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._seen[key] = error
        found = self._seen[key]
        if isinstance(found, Exception):
            raise found
        return found

    def operations(self, sizes: Mapping[str, int]) -> int:
        """How many a run at a shape does, on meta tensors if it runs there; what it raised."""
        try:
            return len(self._recorded(sizes, swift=True).calls)
        except (OutOfBudgetError, TooLongError, AttnprofError):
            raise
        except Exception:  # noqa: BLE001 - whatever the user's code does there
            return len(self.at(sizes).calls)

    def tried(self, sizes: Mapping[str, int]) -> Trace | None:
        """The run at a shape, or None where the code refuses the shape or does too much there."""
        try:
            return self.at(sizes)
        except OutOfBudgetError:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return None

    def seen(self) -> list[dict[str, int]]:
        """Shapes at which runs were made and went well."""
        return [dict(key) for key, found in self._seen.items() if isinstance(found, Trace)]

    @property
    def left(self) -> int:
        """Operations that may still be run."""
        return self._left

    def _recorded(self, sizes: Mapping[str, int], *, swift: bool) -> Trace:
        """One run; operations on fake tensors take three times as long as those on meta tensors."""
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            if done > A_RUN:
                raise TooLongError(f"more than {A_RUN} operations")

        try:
            return record(
                self._target, sizes, training=self._training, before_each=count, swift=swift
            )
        finally:
            self._spend(done * (1 if swift else 3))

    def _spend(self, calls: int) -> None:
        self._left -= calls + _OVERHEAD
        if self._left <= 0:
            raise OutOfBudgetError("the runs it takes would be too long")


#: A run of more operations is tried at smaller sizes.
_MANY = 250
#: Tokens of which a loop over them would take too many operations.
_LONG = 4096


class NotRunningError(Exception):
    """The code raises at every shape that was tried: ``cause`` at the first one."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"it does not run: {error_text(cause)}")
        self.cause = cause


def anchored(
    runs: BudgetedRuns, hints: Mapping[str, int], asked: Mapping[str, int]
) -> dict[str, int]:
    """The hints if the code runs there, or even sizes; smaller ones where they spare operations.

    Sizes of 1 stay. Raises :class:`NotInterpolatedError` with what the code raised at all of them.
    """
    failure: Exception = NotInterpolatedError("no shape to start from")
    for sizes in _starts(hints, asked):
        if isinstance(failure, TooLongError) and sizes.get("N", 0) >= _LONG:
            continue  # a loop over tokens: fewer heads would not help
        try:
            calls = runs.operations(sizes)
        except (AttnprofError, OutOfBudgetError):
            raise
        except TooLongError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            if isinstance(failure, NotInterpolatedError):
                failure = error
        else:
            return _smaller(runs, sizes, calls)
    if isinstance(failure, TooLongError):
        raise NotInterpolatedError(str(failure)) from failure
    raise NotRunningError(failure) from failure


def _starts(hints: Mapping[str, int], asked: Mapping[str, int]) -> Iterator[dict[str, int]]:
    yield dict(hints)
    yield {name: asked.get(name) or EVEN_ANCHOR.get(name, 16) for name in hints}
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


def _smaller(runs: BudgetedRuns, sizes: dict[str, int], calls: int) -> dict[str, int]:
    """The same with sizes made small one after the other, where a run takes many operations."""
    best = sizes
    for name in sorted(sizes, key=lambda name: sizes[name]):
        for least in _less(best[name]):
            # below 256 tokens code in blocks is often another branch: only where it must be
            if calls <= (_MANY if least >= 256 or least == 2 else 2 * _MANY) or least >= best[name]:
                continue
            fewer = _operations(runs, {**best, name: least})
            if fewer is None or fewer > 0.8 * calls:
                break
            best, calls = {**best, name: least}, fewer
    return best


def _operations(runs: BudgetedRuns, sizes: Mapping[str, int]) -> int | None:
    try:
        return runs.operations(sizes)
    except OutOfBudgetError:
        raise
    except Exception:  # noqa: BLE001 - the user's code may raise anything
        return None
