"""Concrete runs of a target, remembered, within a budget of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnprof.errors import AttnprofError
from attnprof.trace.events import Trace
from attnprof.trace.runs import record
from attnprof.trace.target import Target

#: Operations that all runs of one interpolation may take, and one run of them.
BUDGET, A_RUN = 50_000, 5_000
#: What a run costs besides its operations, in operations.
_OVERHEAD = 40


class TooLongError(Exception):
    """A run does more operations than one run may."""


class OutOfBudgetError(Exception):
    """Interpolating would take too many operations."""


def limit(most: int) -> Callable[[], None]:
    """What to call before each operation of a run: it raises TooLongError after so many."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done > most:
            raise TooLongError(f"more than {most} operations")

    return count


class Shots:
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
