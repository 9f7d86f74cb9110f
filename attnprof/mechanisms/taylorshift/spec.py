"""TaylorShift (004, Algorithm 1): both forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.mechanism import Abilities, Mechanism, Published
from attnprof.mechanisms.taylorshift import published


@dataclass(frozen=True, kw_only=True)
class Taylor(Mechanism):
    """What both forms share; ``temperature`` is the initial value, learned, one a head."""

    temperature: float = 1.0

    document: ClassVar[str] = "004"
    family: ClassVar[str] = "taylor"
    abilities: ClassVar[Abilities] = Abilities()


@dataclass(frozen=True, kw_only=True)
class TaylorDirect(Taylor):
    """The Taylor map of N × N scores."""

    name: ClassVar[str] = "taylor-direct"
    title: ClassVar[str] = "TaylorShift, direct form"
    time_order: ClassVar[str] = "N^2"
    memory_order: ClassVar[str] = "N^2"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms: Eq 4, entries, Sec 4.3."""
        return published.DIRECT


@dataclass(frozen=True, kw_only=True)
class TaylorEfficient(Taylor):
    """Box products N × d² instead of scores; causal by a scan over chunks of ``chunk`` tokens."""

    impl: str = "boxed"
    chunk: int = 64

    name: ClassVar[str] = "taylor-efficient"
    title: ClassVar[str] = "TaylorShift, efficient form"
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms: Eq 5, entries, Sec 4.3."""
        return published.EFFICIENT


MECHANISMS = (TaylorDirect, TaylorEfficient)
