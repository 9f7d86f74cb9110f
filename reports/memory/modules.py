"""Derived peak memory against torch's CPU allocator.

Both count what a call adds to what was there before (inputs, parameters, buffers and the output's
gradient are given; output, saved tensors and gradients count). The derived peak comes from a run on
fake tensors, the allocator's from torch's profiler around a second call of the real module::

    python reports/run.py memory/modules                # what is not there
    python reports/run.py memory/modules he convolution # these again, the rest as it was
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from memory import module_cases
from memory.module_cases import SHAPES, Case
from rows import table
from subjects import subject_of

from attnprof.errors import AttnprofError
from attnprof.measure.memory import measure_peak
from attnprof.measure.subject import default_dtype
from attnprof.trace.events import at_least, peak
from attnprof.trace.run.runs import record

#: Of torch; a kernel's own memory depends on it.
THREADS = 2
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


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return ", ".join(filter(None, (row.subject, row.settings, row.dtype, row.causal)))


def cases() -> dict[str, Case]:
    """Return every module, with its settings, format and mask, by name."""
    listed = module_cases.cases()
    return {
        ", ".join(filter(None, (case.name, case.settings, case.dtype, case.mask))): case
        for case in listed
    }


def rows(_: str, case: Case) -> Iterator[Row]:
    """Yield a case at every shape, in each phase."""
    for shape in SHAPES:
        for phase in case.phases:
            torch.manual_seed(0)
            yield _row(case, shape, phase)


def _row(case: Case, shape: tuple[int, int, int, int], phase: str) -> Row:
    about = (case.name, case.settings, case.dtype, case.mask)
    try:
        derived, workspace, cause = _derived(case, shape, phase)
        allocated = _allocator(case, shape, phase)
    except AttnprofError as error:
        return Row(*about, *shape, phase, 0, 0, 0.0, False, "", str(error))
    share = derived / allocated - 1
    if abs(derived - allocated) <= SCALARS and not cause.startswith("at least"):
        cause = "" if derived == allocated else "numbers wrapped as tensors"
    return Row(*about, *shape, phase, derived, allocated, share, workspace, cause)


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
    b, n, h, d = shape
    x = torch.randn(b, n, h * d, dtype=getattr(torch, case.dtype))
    named = {} if case.causal is None else {"causal": case.causal}
    return measure_peak(subject_of(module, (x,), named, phase), "cpu", torch).bytes


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    complete = [row for row in rows if not row.skipped]
    known = [row for row in complete if not row.cause.startswith("at least")]
    plain = [row for row in known if not row.workspace]
    inside = [row for row in known if row.workspace]
    yield "# Peak memory: derived, and the CPU allocator's"
    yield f"{THREADS} threads."
    yield ""
    for title, part, limit in (
        ("without memory inside kernels", plain, EXACT),
        ("with predicted memory inside kernels", inside, OTHERS),
    ):
        worst = max((abs(row.share) for row in part), default=0)
        within = sum(abs(row.share) <= limit for row in part)
        yield f"- {title}: {within} of {len(part)} within {limit:.1%}, the worst {worst:.3%}"
    rest = [row for row in complete if row not in known]
    low = min((row.share for row in rest), default=0)
    yield f"- with memory that is named, not predicted: {len(rest)}, derived down to {low:+.1%}"
    yield ""
    yield "Worst of the shapes " + ", ".join(map(str, SHAPES)) + " (batch, tokens, heads, width):"
    yield ""
    heads = "subject | settings | causal | phase | >derived | >allocator, bytes | >apart | why"
    yield from table(heads, map(_line, _worst(complete)))
    row_names = {name_of(row) for row in rows}
    if lacking := [case for name, case in cases().items() if name not in row_names]:
        names = dict.fromkeys(f"{case.name} {case.settings}".strip() for case in lacking)
        yield f"\nNot measured in this run of the script: {', '.join(names)}."
    for row in rows:
        if row.skipped:
            yield f"\nNot run: {row.subject} {row.settings} at {row.seq_len} tokens: {row.skipped}"


def _line(row: Row) -> tuple[str, ...]:
    settings = " ".join(filter(None, (row.settings, row.dtype.replace("float32", ""))))
    return (
        row.subject, settings, row.causal, row.phase, f"{row.derived:,}", f"{row.allocator:,}",
        f"{row.share:+.3%}", row.cause,
    )  # fmt: skip


def _worst(complete: list[Row]) -> list[Row]:
    """Of each subject, settings and phase the shape that is furthest apart."""
    kept: dict[tuple[str, ...], Row] = {}
    for row in complete:
        key = (row.subject, row.settings, row.dtype, row.causal, row.phase)
        if key not in kept or abs(row.share) > abs(kept[key].share):
            kept[key] = row
    return list(kept.values())
