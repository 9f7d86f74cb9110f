"""Functions that use a size as a Python number, derived and then counted on real tensors.

The functions and the comparison are those of ``tests/trace/sizes_as_numbers.py``::

    python reports/run.py derive/numbers
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rows import since, table

#: Shapes of the stated domain, for each function.
SHAPES = 12


@dataclass(frozen=True)
class Row:
    """One function: how it is derived, where that holds, and how many runs differ."""

    name: str
    method: str
    formula: str
    domain: str
    shapes: int
    wrong: int
    seconds: float


def cases() -> dict[str, Any]:
    """Return the functions by name."""
    from tests.trace.sizes_as_numbers import CASES

    return CASES


def rows(name: str, case: Any) -> Iterator[Row]:
    """Yield what is derived of a function, and what real tensors say."""
    import attnprof
    from attnprof.errors import AttnprofError
    from tests.trace.sizes_as_numbers import asked_of, compared

    start = time.process_time()
    try:
        derivation = attnprof.derive(case, None, **asked_of(case))
    except AttnprofError as error:
        yield Row(name, "refused", "", str(error), 0, 0, since(start))
        return
    seconds, forms = since(start), derivation.phases["forward"]
    shapes, wrong = compared(case, derivation, SHAPES)
    yield Row(
        name, forms.method, str(derivation.expression("matmul_flops")), "; ".join(forms.domain),
        len(shapes), len({str(shape) for shape, *_ in wrong}), seconds,
    )  # fmt: skip


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Sizes that become Python numbers"
    yield (
        f"{len(rows)} functions and modules that pad, round, take roots, logarithms or shares of a "
        "size, or loop log N times: each is derived with all sizes free, and run on real tensors "
        f"at {SHAPES} random shapes of the domain that it states (ends and small sizes as often as "
        "others, seed fixed). Compared as integers: FLOPs by kind, bytes moved, and the matrix "
        "products of torch's `FlopCounterMode` (not of fused attention, which it counts as nothing "
        "on a CPU). `wrong` is the number of shapes with any difference; `s` CPU seconds of the "
        "derivation."
    )
    methods = ", ".join(
        f"{sum(row.method == method for row in rows)} {method}"
        for method in ("symbolic", "mixed", "interpolated", "refused")
    )
    yield ""
    yield (
        f"{methods}; {sum(row.shapes for row in rows)} shapes compared, "
        f"{sum(row.wrong for row in rows)} wrong."
    )
    yield ""
    yield from table(
        "function | method | matmul FLOPs | holds for | >shapes compared | >wrong | >s",
        (
            (row.name, row.method, f"`{row.formula}`", row.domain, row.shapes, row.wrong,
             f"{row.seconds:.1f}")
            for row in rows
        ),
    )  # fmt: skip
    yield from ("", "## The functions", "", "```python")
    yield "\n\n".join(inspect.getsource(case) for case in cases().values()).rstrip("\n")
    yield "```"
