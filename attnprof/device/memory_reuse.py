"""How long ago an operation's memory was used, as a cache would know it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, inf, log1p
from statistics import fmean
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_expired = torch.UntypedStorage._expired  # noqa: SLF001 - whether it was freed, without its lock


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that were used ``since`` the last use of each of an operation's largest tensors.

    Infinite for memory that is new; ``own`` are the operation's bytes.
    """

    since: tuple[float, ...]
    own: int

    def away(self, most: float) -> float:
        """How many of its own sizes ago, on average; new memory was used ``most`` bytes ago."""
        ago = [log1p(min(one, most) / self.own) for one in self.since if self.own]
        return expm1(fmean(ago)) if ago else 0.0


class Memory:
    """Which memory a call has gone through, and when; new tensors take what was freed last."""

    def __init__(self) -> None:
        #: bytes gone through so far
        self.passed = 0
        #: how many those were when a storage was last used; what is held keeps its number its own
        self._used: dict[int, int] = {}
        self._held: defaultdict[int, list[Any]] = defaultdict(list)

    def used(self, tensors: Sequence[Any]) -> "MemoryUse":
        """Notes that an operation uses them, and tells how long ago they were used before."""
        own = sum({id(x): x.nbytes for x in tensors}.values())
        places = {x.untyped_storage()._cdata: x for x in tensors}  # noqa: SLF001 - which memory it is
        largest = max((x.nbytes for x in places.values()), default=0)
        before = [(x.nbytes, self._last(place, x.untyped_storage())) for place, x in places.items()]
        since = tuple(self.passed - last for size, last in before if size == largest)
        self.passed += own
        for place, x in places.items():  # a token written to a cache brings back nothing else
            if 2 * x.nbytes >= x.untyped_storage().nbytes() or place not in self._used:
                self._used[place] = self.passed
        return MemoryUse(since, own)

    def _last(self, place: int, storage: Any) -> float:
        """What had been gone through at a storage's last use; of a new one, that of its block."""
        if place in self._used:
            return self._used[place]
        alike = self._held[storage.nbytes()]
        freed = [one for one in alike if _expired(one.cdata)]
        alike.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        if not freed:
            return -inf
        block = max(freed, key=lambda one: self._used[one.cdata])
        alike.remove(block)
        return self._used.pop(block.cdata)
