"""The formulas 004 prints, as expressions in N and d."""

from __future__ import annotations

from typing import Any

from attnprof.papers.agreement import formula

#: By name: place and text.
PRINTED = {
    "operations_direct": ("Eq 4", "4*N**2*d + 6*N**2"),
    "operations_efficient": ("Eq 5", "N*(4*d**3 + 10*d**2 + 8*d + 3)"),
    "entries_direct": ("Sec 4.2", "d*N + 2*N**2"),
    "entries_efficient": ("Sec 4.2", "d**3 + (N+1)*d**2 + 3*N*d + N"),
}


def published(name: str) -> Any:
    """A printed formula, untouched."""
    return formula(PRINTED[name][1])
