"""Printed formulas of two mechanisms that may be compared, and how they differ from the code's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnprof.algebra.expressions import expression_text, symbol
from attnprof.closed_form.quantities import SAFE
from attnprof.costs import Number
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.published import Published
from attnprof.workload import Workload

if TYPE_CHECKING:
    import numpy as np


Pair = tuple[Published, Published]


@dataclass(frozen=True)
class FreeWidthWorkload(Workload):
    """A workload whose width stands by itself: documents plot widths that heads do not divide."""

    width: Number = 1

    @property
    def d_model(self) -> Number:
        """The width as given, not heads times head width."""
        return self.width


def comparable(a: Mechanism, b: Mechanism) -> list[Pair]:
    """Printed formulas of both that agree in document, scope, phase, quantity and convention."""
    return [(x, y) for x in a.published() for y in b.published() if x.terms == y.terms]


def speaking(
    pairs: Sequence[Pair],
    quantity: str,
    phase: str,
    causal: bool,
    scope: str | None,
    heads: Sequence[int],
) -> list[Pair]:
    """The pairs that speak of what is asked, in any scope where none is."""
    return [
        (form, other)
        for form, other in pairs
        if (form.quantity, form.phase, form.causal) == (quantity, phase, causal)
        and scope in (None, form.scope)
        and (form.heads != "one" or set(heads) == {1})
    ]


def published_pair(
    a: Mechanism,
    b: Mechanism,
    *,
    quantity: str,
    phase: str,
    causal: bool,
    scope: str | None,
    heads: Sequence[int],
) -> Pair:
    """The two printed formulas that answer a request.

    Raises :class:`RequestError` telling what is printed where nothing matches.
    """
    pairs = comparable(a, b)
    if found := speaking(pairs, quantity, phase, causal, scope, heads):
        return found[0]
    what = f"{'causal ' if causal else ''}{quantity} of phase {phase}"
    raise RequestError(
        f"no document prints {what} for both {a.name} and {b.name}"
        f"{f' in scope {scope}' if scope else ''}; {_possible(pairs)} use --kind formula"
    )


def _possible(pairs: list[Pair]) -> str:
    if not pairs:
        return "nothing is printed for both on the same terms:"
    found = dict.fromkeys(
        f"--quantity {x.quantity} --phase {x.phase} --scope {x.scope}"
        f"{' --causal' if x.causal else ''}{' --heads 1' if x.heads == 'one' else ''}"
        f" ({x.source}, {y.source})"
        for x, y in pairs
    )
    return f"printed for both: {'; '.join(found)}; or"


def published_values(
    formula: Published, num_heads: int, seq_lens: Sequence[int], d_models: Sequence[int]
) -> np.ndarray:
    """A printed formula over (seq_len, d_model): exact integers where heads divide the width.

    Where they do not, the formula is evaluated with the fractional head width, as documents do.
    """
    import numpy as np

    def column(width: int) -> np.ndarray:
        def at(n: Any, head_dim: Number) -> Any:
            return formula.formula(
                FreeWidthWorkload(seq_len=n, num_heads=num_heads, head_dim=head_dim, width=width)
            )

        above = -(-width // num_heads)
        n = np.array(seq_lens, dtype=np.int64 if at(max(seq_lens), above) < SAFE else object)
        head_dim = np.array([width / num_heads]) if width % num_heads else above
        return np.broadcast_to(at(n, head_dim), n.shape)

    columns = [column(width) for width in d_models]
    if len({values.dtype for values in columns}) > 1:
        columns = [values.astype(object) for values in columns]
    return np.stack(columns, axis=1)


def why_memory_differs(a: Mechanism, b: Mechanism, workload: Workload, scope: str) -> str | None:
    """One sentence with the printed sums of entries and what the code holds at its worst moment.

    None where no document prints both sides.
    """
    printed = next((pair for pair in comparable(a, b) if pair[0].quantity == "peak_entries"), None)
    if printed is None:
        return None
    sizes = workload.with_(seq_len=symbol("N"), head_dim=symbol("d"))
    said = [
        f"{side.name} {expression_text(form.formula(sizes))}"
        for side, form in zip((a, b), printed, strict=True)
    ]
    entry = sizes.with_(dtype="entry")
    held = [f"{side.name} {expression_text(side.cost(entry, scope).peak())}" for side in (a, b)]
    return (
        "memory differs because the document adds up the entries of the tensors it names "
        f"({'; '.join(said)}), while running code holds, at its worst moment, what autograd and "
        f"evaluation order leave alive together ({'; '.join(held)} entries)"
    )
