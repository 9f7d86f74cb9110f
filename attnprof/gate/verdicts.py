"""What a case of the gate can get, and what a run of it ends with."""

from __future__ import annotations

from collections.abc import Iterable

OK, IMPROVED, REGRESSED = "ok", "improved", "regressed"
INCONCLUSIVE, NOT_COMPARABLE = "inconclusive", "not-comparable"
NEW, MISSING, ERROR = "new", "missing", "error"
VERDICTS = (OK, IMPROVED, REGRESSED, INCONCLUSIVE, NOT_COMPARABLE, NEW, MISSING, ERROR)

#: In the order of what a run ends with: what got worse, what could not be judged, what did.
WORST_FIRST = (
    REGRESSED, ERROR, MISSING, INCONCLUSIVE, NOT_COMPARABLE, NEW, IMPROVED, OK,
)  # fmt: skip


def worst(verdicts: Iterable[str]) -> str:
    """The worst of some verdicts; ``ok`` where there are none."""
    return min(verdicts, key=WORST_FIRST.index, default=OK)


def exit_code(verdicts: Iterable[str], *, inconclusive_fails: bool = False) -> int:
    """0 fine, 1 something got worse, 3 something could not be judged (never 1).

    What got worse comes first. ``missing`` and ``error`` could not be judged; ``inconclusive``
    only where that is asked to fail.
    """
    found = set(verdicts)
    if REGRESSED in found:
        return 1
    unjudged = {MISSING, ERROR} | ({INCONCLUSIVE} if inconclusive_fails else set())
    return 3 if found & unjudged else 0
