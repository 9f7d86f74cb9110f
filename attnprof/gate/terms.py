"""How a check is made: which rule, what an open result means, how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.errors import RequestError, closest
from attnprof.gate.paired import RULES

PASS, FAIL, RETRY = "pass", "fail", "retry"
POLICIES = (PASS, FAIL, RETRY)
ADVISE = "advise"


@dataclass(frozen=True)
class Terms:
    """What a check is asked.

    ``rule`` stands for every case's own where it is given. ``inconclusive`` says what an open
    result in time means: more pairs while the budget lasts and then a pass (``retry``), a pass at
    once, or exit code 3. ``budget_s`` are seconds for all times together. ``stored_times`` says
    whether times stored on the same machine may ``fail`` a check or only ``advise``. After
    ``limit_s`` seconds a process that counts or times one case is ended.
    """

    rule: str | None = None
    inconclusive: str = RETRY
    budget_s: float = 300.0
    timed: bool = True
    formulas: bool = True
    stored_times: str = ADVISE
    seed: int = 0
    limit_s: float | None = None

    def __post_init__(self) -> None:
        for flag, value, possible in (
            ("--rule", self.rule or "default", list(RULES)),
            ("--inconclusive", self.inconclusive, list(POLICIES)),
            ("--stored-times", self.stored_times, [ADVISE, FAIL]),
        ):
            if value not in possible:
                raise RequestError(f"{flag} {value}: {closest(value, possible)}")
        if self.limit_s is not None and not 0 < self.limit_s < 1e9:
            raise RequestError(f"--limit {self.limit_s}: give seconds above 0, like 60")
        if not 0 < self.budget_s < 1e9:
            raise RequestError(f"--budget {self.budget_s}: give seconds above 0, like 300")
