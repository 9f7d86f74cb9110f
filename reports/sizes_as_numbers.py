"""Functions that use a size as a Python number, derived and then counted on real tensors.

    python reports/sizes_as_numbers.py

Writes sizes_as_numbers.md beside itself. The functions and the comparison are those of
``tests/trace/sizes_as_numbers.py``.
"""

from __future__ import annotations

import inspect
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

#: Shapes of the stated domain, for each function.
SHAPES = 12


def row(name: str, case: Any) -> dict[str, Any]:
    """One function: how it is derived, where that holds, and what real tensors say."""
    import attnprof
    from attnprof.errors import AttnprofError
    from tests.trace.sizes_as_numbers import asked_of, compared

    start = time.process_time()
    try:
        found = attnprof.derive(case, None, **asked_of(case))
    except AttnprofError as error:
        return {"name": name, "method": "refused", "domain": str(error), "formula": "", "shapes": 0,
                "wrong": 0, "seconds": time.process_time() - start}  # fmt: skip
    seconds = time.process_time() - start
    forms = found.phases["forward"]
    shapes, wrong = compared(case, found, SHAPES)
    return {
        "name": name,
        "method": forms.method,
        "domain": "; ".join(forms.domain),
        "formula": str(found.expression("matmul_flops")),
        "shapes": len(shapes),
        "wrong": len({str(shape) for shape, *_ in wrong}),
        "seconds": seconds,
    }


def page(rows: list[dict[str, Any]], cases: dict[str, Any]) -> str:
    """The report, as Markdown."""
    lines = [
        "| function | method | matmul FLOPs | holds for | shapes compared | wrong | s |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row['name']} | {row['method']} | `{row['formula']}` | {row['domain']} "
        f"| {row['shapes']} | {row['wrong']} | {row['seconds']:.1f} |"
        for row in rows
    ]
    methods = {
        method: sum(row["method"] == method for row in rows)
        for method in ("symbolic", "interpolated", "refused")
    }
    return PAGE.format(
        count=len(rows),
        shapes=sum(row["shapes"] for row in rows),
        wrong=sum(row["wrong"] for row in rows),
        table="\n".join(lines),
        code="\n\n".join(inspect.getsource(case) for case in cases.values()),
        **methods,
    )


PAGE = """# Sizes that become Python numbers

Written by `python reports/sizes_as_numbers.py`. {count} functions and modules that pad, round, take
roots, logarithms or shares of a size, or loop log N times: each is derived with all sizes free, and
run on real tensors at 12 random shapes of the domain that it states (ends and small sizes as often
as others, seed fixed). Compared as integers: FLOPs by kind, bytes moved, and the matrix products of
torch's `FlopCounterMode` (not of fused attention, which it counts as nothing on a CPU). `wrong` is
the number of shapes with any difference; `s` CPU seconds of the derivation.

{symbolic} symbolic, {interpolated} interpolated, {refused} refused; {shapes} shapes compared,
{wrong} wrong.

{table}

## The functions

```python
{code}```
"""


def main() -> None:
    """Derive and compare all of them."""
    import torch

    from tests.trace.sizes_as_numbers import CASES

    torch.set_num_threads(1)
    rows = []
    for name, case in CASES.items():
        rows.append(row(name, case))
        told = {key: rows[-1][key] for key in ("name", "method", "shapes", "wrong")}
        sys.stderr.write(f"{told}\n")
    (HERE / "sizes_as_numbers.md").write_text(page(rows, CASES), encoding="utf-8")


if __name__ == "__main__":
    main()
