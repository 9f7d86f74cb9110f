"""Formulas as documents print them, with their place and what they count."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnprof.costs import Number
from attnprof.workload import Workload


@dataclass(frozen=True)
class Published:
    """A closed form as a document prints it, untouched.

    ``formula`` maps a workload of one sequence to the printed value; two published formulas may
    be compared only if document, scope, phase, causal, quantity and convention all agree.
    ``heads`` is ``one`` where the document prints the form for a single head.
    """

    source: str
    quantity: str
    scope: str
    phase: str
    convention: str
    formula: Callable[[Workload], Number]
    causal: bool = False
    heads: str = "any"

    @property
    def document(self) -> str:
        """Number of the document, ``004`` of ``004-EQ5``."""
        return self.source.split("-", 1)[0]

    @property
    def terms(self) -> tuple[Any, ...]:
        """What must agree for two formulas to be comparable."""
        return (
            self.document, self.scope, self.phase, self.causal, self.quantity,
            self.convention, self.heads,
        )  # fmt: skip
