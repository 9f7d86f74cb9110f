"""Why a document's memory crossover is not the code's: both sums, side by side, in words."""

from __future__ import annotations

from attnprof.mechanism import Mechanism
from attnprof.symbolic.printed import comparable
from attnprof.symbolic.text import expression_text
from attnprof.workload import Workload


def why_memory_differs(a: Mechanism, b: Mechanism, workload: Workload, scope: str) -> str | None:
    """One sentence with the printed sums of entries and what the code holds at its worst moment.

    None where no document prints both sides.
    """
    printed = next((pair for pair in comparable(a, b) if pair[0].quantity == "peak_entries"), None)
    if printed is None:
        return None
    sizes = symbols(workload)
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


def symbols(workload: Workload) -> Workload:
    """The workload with length and head width as symbols; batch and heads stay numbers."""
    import sympy

    n, d = (sympy.Symbol(name, positive=True) for name in ("N", "d"))
    return workload.with_(seq_len=n, head_dim=d)
