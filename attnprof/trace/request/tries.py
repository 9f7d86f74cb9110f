"""A search for guesses with which code runs: each failure suggests the next ones to change."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.request.given import Repair, Request
from attnprof.trace.request.messages import in_call
from attnprof.trace.request.repairs import UNSET, Failed
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_inputs

#: Guesses changed at once, at most.
_MOST_CHANGES = 5
#: A request made ready to run.
Build = Callable[[Request], Target]


@dataclass
class Tries:
    """Changes of a request's guesses, tried until one target does not fail; ``seen`` has them.

    ``fails`` returns what a target raises, or None. There are at most ``most`` tries, in
    ``seconds`` of processor time.
    """

    build: Build
    request: Request
    subject: Any
    fails: Callable[[Target], Exception | None]
    most: int
    seconds: float
    seen: list[Repair] = field(default_factory=list)

    def until_one_runs(self, first: Target, error: Exception) -> Target | None:
        """Return the first target that runs, or None; ``first`` fails with ``error``.

        A change that fails has repairs of its own. They are tried next if it got further than the
        one before (it failed in the call instead of the constructor, or replaced a None), else
        last.
        """
        root = Failed(self.subject, self.request, first, error, first)
        waiting = [(Repair(), root.repairs(), error)]
        end = time.process_time() + self.seconds
        while waiting and len(self.seen) < self.most and time.process_time() < end:
            change, repairs, why = waiting[0]
            repair = next(repairs, None)
            if repair is None:
                waiting.pop(0)
            elif (ours := change | repair) not in self.seen:
                self.seen.append(ours)
                target, cause = self._build_and_run(ours)
                if target and cause is None:
                    return target
                if target and cause and len(ours) < _MOST_CHANGES:
                    lacking = UNSET.search(str(why)) or "NoneType" in str(cause)
                    further = (lacking or in_call(cause) > in_call(why)) and str(cause) != str(why)
                    failed = Failed(self.subject, self.request, target, cause, first, ours)
                    more = ours, failed.repairs(), cause
                    waiting.insert(0 if further else len(waiting), more)
        return None

    def _build_and_run(self, change: Repair) -> tuple[Target | None, Exception | None]:
        """Return the target of a change and its error, or None twice if it cannot be built."""
        try:
            target = self.build(self.request.with_guesses(change.args, parse_inputs(change.inputs)))
        except AttnprofError:
            return None, None
        return target, self.fails(target)
