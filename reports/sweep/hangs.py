"""A mechanism that never ends, for a sweep that must."""

import time
from dataclasses import dataclass
from typing import ClassVar

from attnprof.blocks.core import TextCore
from attnprof.mechanisms.standard import Standard


@dataclass(frozen=True, kw_only=True)
class Hangs(Standard):
    """Standard attention that waits for ever."""

    name: ClassVar[str] = "hangs"


class HangingCore(TextCore):
    """Sleeps instead of working."""

    def forward(self, *_: object, **__: object) -> None:
        """Never returns in the time of a sweep."""
        time.sleep(10_000)


CORES = {"hangs": HangingCore}
