"""Derived peak memory against torch's CPU allocator: writes ``peaks.md`` and ``peaks.csv``.

Both count what a call adds to what was there before (inputs, parameters, buffers and the output's
gradient are given; output, saved tensors and gradients count). The derived peak comes from a run on
fake tensors, the allocator's from torch's profiler around a second call of the real module::

    python reports/peaks.py                # everything
    python reports/peaks.py he convolution # these again, the rest as it was
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peaks_cases import SHAPES, Case, cases
from row_files import earlier, save

from attnprof.errors import AttnprofError
from attnprof.measure.memory import measure_peak
from attnprof.measure.subject import Subject, default_dtype
from attnprof.trace.events import at_least, peak
from attnprof.trace.run.runs import record

#: Nearer than this is the same: Python numbers that torch wraps on the way, 4 or 8 bytes each.
SCALARS = 64
EXACT, OTHERS = 1e-3, 2e-2
_FUSED = "_scaled_dot_product_flash_attention_for_cpu_backward"


@dataclass(frozen=True)
class Row:
    """One comparison; sizes in bytes, ``workspace`` of the derived peak inside kernels."""

    subject: str
    settings: str
    dtype: str
    causal: str
    batch_size: int
    seq_len: int
    num_heads: int
    head_dim: int
    phase: str
    derived: int
    allocator: int
    share: float
    workspace: bool
    cause: str
    skipped: str = ""


def rows(names: list[str], before: list[Row]) -> Iterator[Row]:
    """Every case at every shape, in both phases; of names only, others as they were."""
    for case in cases():
        told = [row for row in before if (row.subject, row.settings, row.dtype, row.causal) == (
            case.name, case.settings, case.dtype, case.told)]  # fmt: skip
        if names and case.name not in names and told:
            yield from told
            continue
        print(case.name, case.settings, file=sys.stderr)  # noqa: T201 - progress
        for shape in SHAPES:
            for phase in case.phases:
                torch.manual_seed(0)
                yield _row(case, shape, phase)


def _row(case: Case, shape: tuple[int, int, int, int], phase: str) -> Row:
    about = (case.name, case.settings, case.dtype, case.told)
    try:
        derived, workspace, cause = _derived(case, shape, phase)
        seen = _allocator(case, shape, phase)
    except AttnprofError as error:
        return Row(*about, *shape, phase, 0, 0, 0.0, False, "", str(error))
    share = derived / seen - 1
    if abs(derived - seen) <= SCALARS and not cause.startswith("at least"):
        cause = "" if derived == seen else "numbers wrapped as tensors"
    return Row(*about, *shape, phase, derived, seen, share, workspace, cause)


def _derived(case: Case, shape: tuple[int, int, int, int], phase: str) -> tuple[int, bool, str]:
    """Peak; whether it has kernels' own memory; why it may differ from the allocator's."""
    sizes = dict(zip("BNhd", shape, strict=True))
    trace = record(case.derivable(), sizes, training=phase != "forward")
    inside = any(call.workspace for call in trace.calls)
    missing = sorted({call.scratch for call in trace.part(phase) if call.scratch})
    cause = "unexplained"
    if at_least(trace, phase):
        cause = f"at least: the own memory of {', '.join(missing)} is not known"
    elif any(call.op == _FUSED for call in trace.calls):
        cause = "row sums of other threads, which the profiler does not see"
    return peak(trace, phase), inside, cause


def _allocator(case: Case, shape: tuple[int, int, int, int], phase: str) -> int:
    with default_dtype(case.dtype):
        module = case.build(*shape)
    module.train(phase != "forward")
    b, n, h, d = shape
    x = torch.randn(b, n, h * d, dtype=getattr(torch, case.dtype))
    named = {} if case.causal is None else {"causal": case.causal}
    return measure_peak(_subject(module, x, named, phase), "cpu", torch).bytes


def _subject(module: Any, x: torch.Tensor, named: dict[str, Any], phase: str) -> Subject:
    def forward() -> object:
        with torch.no_grad():
            return module(x, **named)

    if phase == "forward":
        return Subject(module, _nothing, _nothing, forward)
    with torch.no_grad():
        ones = torch.ones_like(module(x, **named))
    x.requires_grad_()

    def clear() -> None:
        for leaf in (x, *module.parameters()):
            leaf.grad = None

    def train() -> None:
        module(x, **named).backward(ones)

    return Subject(module, clear, clear, train)


def _nothing() -> None:
    """Nothing to prepare."""


def _page(found: list[Row]) -> Iterator[str]:
    ran = [row for row in found if not row.skipped]
    known = [row for row in ran if not row.cause.startswith("at least")]
    plain = [row for row in known if not row.workspace]
    inside = [row for row in known if row.workspace]
    yield "# Peak memory: derived, and the CPU allocator's"
    yield ""
    yield "Written by `python reports/peaks.py`; every comparison is in `peaks.csv`."
    yield (
        f"torch {torch.__version__}, {platform.machine()}, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads."
    )
    yield ""
    for told, part, limit in (
        ("without memory inside kernels", plain, EXACT),
        ("with predicted memory inside kernels", inside, OTHERS),
    ):
        worst = max((abs(row.share) for row in part), default=0)
        within = sum(abs(row.share) <= limit for row in part)
        yield f"- {told}: {within} of {len(part)} within {limit:.1%}, the worst {worst:.3%}"
    rest = [row for row in ran if row not in known]
    low = min((row.share for row in rest), default=0)
    yield f"- with memory that is named, not predicted: {len(rest)}, derived down to {low:+.1%}"
    yield ""
    yield "Worst of the shapes " + ", ".join(map(str, SHAPES)) + " (batch, tokens, heads, width):"
    yield ""
    yield "| subject | settings | causal | phase | derived | allocator, bytes | apart | why |"
    yield "|---|---|---|---|--:|--:|--:|---|"
    for row in _worst(ran):
        settings = " ".join(filter(None, (row.settings, row.dtype.replace("float32", ""))))
        yield (
            f"| {row.subject} | {settings} | {row.causal} | {row.phase} | {row.derived:,} | "
            f"{row.allocator:,} | {row.share:+.3%} | {row.cause} |"
        )
    have = {(row.subject, row.settings, row.dtype, row.causal) for row in found}
    lacking = [c for c in cases() if (c.name, c.settings, c.dtype, c.told) not in have]
    if lacking:
        told = dict.fromkeys(f"{case.name} {case.settings}".strip() for case in lacking)
        yield f"\nNot measured in this run of the script: {', '.join(told)}."
    for row in found:
        if row.skipped:
            yield f"\nNot run: {row.subject} {row.settings} at {row.seq_len} tokens: {row.skipped}"


def _worst(ran: list[Row]) -> list[Row]:
    """Of each subject, settings and phase the shape that is furthest apart."""
    kept: dict[tuple[str, ...], Row] = {}
    for row in ran:
        key = (row.subject, row.settings, row.dtype, row.causal, row.phase)
        if key not in kept or abs(row.share) > abs(kept[key].share):
            kept[key] = row
    return list(kept.values())


if __name__ == "__main__":
    here, found = Path(__file__).parent, []
    before = earlier(here / "peaks.csv", Row)
    for row in rows(sys.argv[1:], before):
        found.append(row)
        if row not in before:  # what is measured is kept, whatever happens later
            save(here / "peaks.csv", Row, [*found, *(x for x in before if x not in found)])
    save(here / "peaks.csv", Row, found)
    (here / "peaks.md").write_text("\n".join(_page(found)) + "\n", encoding="utf-8")
