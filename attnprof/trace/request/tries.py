"""A search among other guesses where the first ones do not run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.request.given import Repair, Request
from attnprof.trace.request.messages import begun
from attnprof.trace.request.repairs import UNSET, Failed
from attnprof.trace.request.target import Target
from attnprof.trace.request.texts import parse_inputs

#: How many guesses may be changed at once.
_DEEPEST = 5
#: A request made ready to run.
Build = Callable[[Request], Target]


@dataclass
class Tries:
    """Changes of the guesses of a request, tried until one target does not fail.

    ``fails`` is what a target raises, if anything; there are at most so many tries, in so many
    seconds of processor time.
    """

    build: Build
    request: Request
    subject: Any
    fails: Callable[[Target], Exception | None]
    most: int
    seconds: float
    seen: list[Repair] = field(default_factory=list)

    def until_one_runs(self, first: Target, error: Exception) -> Target | None:
        """The first that runs, where ``first`` fails with an error."""
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
                found, cause = self._tried(ours)
                if found and cause is None:
                    return found
                if found and cause and len(ours) < _DEEPEST:
                    lacking = UNSET.search(str(why)) or "NoneType" in str(cause)
                    further = (lacking or begun(cause) > begun(why)) and str(cause) != str(why)
                    failed = Failed(self.subject, self.request, found, cause, first, ours)
                    more = ours, failed.repairs(), cause
                    waiting.insert(0 if further else len(waiting), more)
        return None

    def _tried(self, change: Repair) -> tuple[Target | None, Exception | None]:
        try:
            target = self.build(self.request.instead(change.args, parse_inputs(change.inputs)))
        except AttnprofError:
            return None, None
        return target, self.fails(target)
