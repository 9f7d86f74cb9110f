"""Every mechanism's costs derived from its code: how, how long, and whether they are the form.

    python reports/deriving.py [NAME ...]

Writes deriving.md beside itself. Each mechanism is derived in a process of its own, all phases
one after the other, in CPU seconds without the import of torch and sympy (``OMP_NUM_THREADS=1``).
The mechanisms' default parameters; where those have no step, the ones named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PHASES = (("forward", False), ("forward", True), ("train", False), ("train", True),
          ("decode", False))  # fmt: skip
#: parameters without which a mechanism does not decode
TO_DECODE = {"sparse": {"stride": 64}, "reformer": {"num_buckets": 16}}


def derive(name: str) -> list[dict[str, Any]]:
    """One row a phase."""
    import sympy  # noqa: F401 - not part of the time
    import torch

    from attnprof import registry
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import mechanism_target
    from attnprof.trace.solve.derive import derived

    torch.set_num_threads(1)
    rows = []
    for phase, causal in PHASES:
        spec = registry.get(name, **(TO_DECODE.get(name, {}) if phase == "decode" else {}))
        can = spec.abilities
        if (causal and not can.causal) or (phase == "decode" and not can.decode):
            continue
        start = time.process_time()
        row: dict[str, Any] = {"phase": f"{phase}, causal" if causal else phase}
        try:
            found = derived(mechanism_target(spec, causal=causal), [phase])
        except AttnprofError as error:
            row |= {"method": "none", "expression": str(error).partition(" (")[0], "equal": None}
        else:
            forms = found.phases[phase]
            expression = found.expression("flops", phase)
            row |= {
                "method": forms.method,
                "expression": str(expression),
                "domain": "; ".join(forms.domain),
                "equal": _equal(spec, found, phase, causal),
            }
        rows.append({**row, "seconds": time.process_time() - start})
    return rows


def _equal(spec: Any, found: Any, phase: str, causal: bool) -> bool | None:
    """Whether FLOPs, bytes and parameters are the closed form's where they were verified."""
    from attnprof import Workload
    from attnprof.trace.events import KINDS
    from attnprof.trace.sizes import evaluate

    formulas = found.phases[phase].formulas
    for at in found.phases[phase].verified_at:
        w = Workload(at["N"], at["h"], at["d"], at["B"], causal=causal, phase=phase)
        table = spec.cost(w)
        ours = {name: getattr(table.total, name) for name in (*KINDS, "flops", "bytes_moved")}
        for quantity, value in {**ours, "parameters": table.parameters}.items():
            expression = formulas[quantity].expression
            if expression is not None and evaluate(expression, at) != value:
                return False
    return True


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| mechanism | phase | method | s | equals the closed form | FLOPs |",
        "|---|---|---|---:|---|---|",
    ]
    for row in rows:
        equal = {True: "yes", False: "no", None: "–"}[row["equal"]]
        said = row["expression"] if len(row["expression"]) < 220 else f"{row['expression'][:216]} …"
        body = f"`{said}`" if row["method"] != "none" else said
        lines.append(
            f"| {row['mechanism']} | {row['phase']} | {row['method']} | {row['seconds']:.1f} "
            f"| {equal} | {body} |"
        )
    return "\n".join(lines)


def page(rows: list[dict[str, Any]]) -> str:
    """The report."""
    from attnprof import registry

    methods = {method: sum(r["method"] == method for r in rows) for method in
               ("symbolic", "interpolated", "none")}  # fmt: skip
    slowest = max(rows, key=lambda row: row["seconds"])
    standard = [r["seconds"] for r in rows if r["mechanism"] == "standard"]
    wrong = [f"{r['mechanism']} {r['phase']}" for r in rows if r["equal"] is False]
    return PAGE.format(
        decoding=", ".join(f"{name} {values}" for name, values in TO_DECODE.items()),
        slowest="{mechanism}, {phase}, {seconds:.1f} s".format(**slowest),
        standard=f"{max(standard, default=0):.1f} s",
        wrong=", ".join(wrong) or "none",
        left=", ".join(n for n in registry.names() if n not in {r["mechanism"] for r in rows})
        or "none",
        table=table(rows),
        **methods,
    )


PAGE = """# Closed forms of every mechanism, derived from its code

Written by `python reports/deriving.py`. A layer with default parameters (to decode: {decoding}),
sizes all free. `symbolic`: one run with symbolic sizes; `interpolated`: exact polynomials through
concrete runs, in one class of lengths; `none`: no polynomial, numbers at one shape with `--at`.
Seconds are CPU seconds of one thread for a phase, without imports. FLOPs by kind, bytes and
parameters are compared with the closed form at every shape at which the derivation was verified
(three or more, each a run); `tests/trace/test_mechanisms.py` compares them as polynomials, and
those of every mechanism as integers at five shapes and more.

{symbolic} symbolic, {interpolated} interpolated, {none} without a formula.
Not run yet: {left}.
Slowest: {slowest}. `standard`: {standard} at most. Not equal to the closed form: {wrong}.

{table}
"""


def main() -> None:
    """Derive all, or those named."""
    from attnprof import registry

    rows = []
    for name in sys.argv[1:] or registry.names():
        child = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, __file__, "--one", name],
            capture_output=True, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        found = json.loads(child.stdout.splitlines()[-1])
        for row in found:
            told = f"{name} {row['phase']}: {row['method']}, {row['seconds']:.1f} s, {row['equal']}"
            sys.stderr.write(f"{told}\n")
        rows += [{"mechanism": name, **row} for row in found]
        (HERE / "deriving.md").write_text(page(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.stdout.write(json.dumps(derive(sys.argv[2])))
    else:
        main()
