"""Growth of the mechanisms that the document names: counted, and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import Any

from attnprof.papers.measured import measured
from attnprof.symbolic.growth import Subject, fitted
from attnprof.workload import Workload

HEAD_DIM = 64
LENGTHS = tuple(2**power for power in range(9, 17))
#: Lengths at which a clock and an allocator are asked, and torch's counter.
SHORT = (512, 1024, 2048, 4096)
#: The families of its figures; the listing's own Longformer is dense.
DENSE = "longformer impl=dense-mask"
FAMILIES: dict[str, tuple[str, ...]] = {
    "D": (),
    "E": ("linformer", "nystromformer", "low-rank"),
    "F": ("performer", "linear"),
    "G": ("longformer", DENSE, "reformer", "sparse"),
}


def subject(label: str) -> Subject:
    """A mechanism as ``list`` writes it, one head, its core."""
    from attnprof import registry

    name, *settings = label.split()
    params = dict(setting.split("=") for setting in settings)
    return Subject(registry.get(name, **params), Workload(1, 1, HEAD_DIM), "core")


def points(label: str) -> list[dict[str, Any]]:
    """A row a length: closed forms everywhere, counted and measured at the short ones."""
    its = subject(label)
    clocked = {
        point["seq_len"]: point
        for point in measured("003", "growth")
        if point["mechanism"] == label
    }
    rows = []
    for n in LENGTHS:
        table = its.table(n)
        here = clocked.get(n, {})
        rows.append({
            "mechanism": label, "seq_len": n, "flops": int(table.flops),
            "matmul_flops": int(table.matmul_flops),
            "matmul_flops_counted": here.get("matmul_flops"),
            "peak_bytes": int(table.peak()), "peak_bytes_measured": here.get("peak_bytes"),
            "median_s": here.get("median_s"), "ci_low_s": here.get("ci_low_s"),
            "ci_high_s": here.get("ci_high_s"),
        })  # fmt: skip
    return rows


def exponent(rows: Sequence[dict[str, Any]], quantity: str) -> float:
    """The exponent of N in a count, over the longer half of the lengths."""
    return fitted([row["seq_len"] for row in rows], [row[quantity] for row in rows])


def clocked_exponent(rows: Sequence[dict[str, Any]]) -> float:
    """The exponent of N in the processor times, over all lengths that have one."""
    known = [row for row in rows if row["median_s"]]
    lengths = [math.log(row["seq_len"]) for row in known]
    return linear_regression(lengths, [math.log(row["median_s"]) for row in known]).slope
