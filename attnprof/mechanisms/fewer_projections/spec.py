"""Optimised, Efficient and Super Attention (000, Definitions 2 to 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.mechanism import Abilities, Published
from attnprof.mechanisms.standard.spec import SoftmaxAttention, eq24


@dataclass(frozen=True, kw_only=True)
class Optimised(SoftmaxAttention):
    """No value projection: a head's values are a column slice of the input (000, Def 2)."""

    name: ClassVar[str] = "optimised"
    title: ClassVar[str] = "Optimised Attention"
    document: ClassVar[str] = "000"
    projections: ClassVar[str] = "qko"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(12),)


@dataclass(frozen=True, kw_only=True)
class Efficient(SoftmaxAttention):
    """Neither key nor value projection: both are column slices of the input (000, Def 3)."""

    name: ClassVar[str] = "efficient"
    title: ClassVar[str] = "Efficient Attention"
    document: ClassVar[str] = "000"
    projections: ClassVar[str] = "qo"

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(9),)


@dataclass(frozen=True, kw_only=True)
class Super(Efficient):
    """Efficient Attention whose values a map over tokens mixes first (000, Def 4)."""

    per_head: bool = False

    name: ClassVar[str] = "super"
    title: ClassVar[str] = "Super Attention"
    abilities: ClassVar[Abilities] = Abilities(needs_seq_len=True)

    def published(self) -> tuple[Published, ...]:
        """Printed closed forms."""
        return (eq24(12),)


MECHANISMS = (Optimised, Efficient, Super)
