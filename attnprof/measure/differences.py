"""Explain numbers that should agree and do not: the cause, or "unexplained", and the amount."""

from attnprof.measure.counters import DerivedCount, FvcoreCount, TorchCount
from attnprof.measure.memory import Peak
from attnprof.record import ProfileRecord
from attnprof.units import format_bytes

#: Peaks nearer than this share of the measured one are the same, or nearer than these bytes:
#: autograd's engine holds a scalar or two of its own.
SAME_PEAK = 1e-3
SCALARS = 64
#: Words of a row that says what is not explained, and of which number.
_UNEXPLAINED, _PEAK, _KNOWN_CAUSES = "unexplained difference", "in peak memory", "known causes"
#: Products that fvcore has no rule for, or not for all of their spellings.
_SEEN_AS = ("baddbmm", "addbmm", "addmm", "mv", "addmv", "dot", "vdot")
#: How fvcore names an ``autograd.Function`` it cannot see into.
_BLACK_BOX = "prim::PythonOp."
#: fvcore's own names of products; its other counts are of normalisations and the like.
_PRODUCTS = ("linear", "addmm", "mm", "bmm", "matmul", "einsum", "conv")


def counter_differences(formula: int, torch_count: TorchCount, fvcore: FvcoreCount) -> list[str]:
    """Return a row for each step from the formula's FLOPs to those of both counters.

    ``formula`` are the ``matmul_flops`` of the closed form.
    """
    executed = torch_count.executed.total()
    rows = []
    if formula != executed:
        rows.append(
            f"unexplained difference of {formula - executed:+,} FLOPs between the closed form and "
            f"the products executed ({executed:,})"
        )
    rows += _torch_rows(torch_count)
    if fvcore.failed is None:
        rows += _fvcore_rows(torch_count, fvcore)
    elif not fvcore.failed.startswith("fvcore counts forward"):
        rows.append(f"fvcore could not trace the module ({fvcore.failed})")
    return rows


def derived_differences(flops_formula: int, count: DerivedCount) -> list[str]:
    """Return the difference of the formula's and the derived FLOPs, if any, as rows."""
    rows = [] if count.note is None else [count.note]
    if count.flops is not None and count.flops != flops_formula:
        rows.append(
            f"unexplained difference of {flops_formula - count.flops:+,} FLOPs between the closed "
            "form and what was derived from the code"
        )
    return rows


def contradiction(record: ProfileRecord) -> str | None:
    """Return the unexplained difference that makes a record's predicted counts doubtful.

    For FLOPs any row counts, except on fvcore's own. A module without a closed form gets its bytes
    and FLOPs from one run, so a contradicted peak makes these doubtful, too. None if there is no
    such row.
    """
    counted = record.flops_formula is None
    for row in record.differences:
        if _UNEXPLAINED not in row or "fvcore's" in row:
            continue
        if _PEAK not in row or (counted and _KNOWN_CAUSES not in row):
            return row
    return None


def _torch_rows(count: TorchCount) -> list[str]:
    rows = []
    for operation in sorted(set(count.counted) | set(count.executed)):
        counted, executed = count.counted[operation], count.executed[operation]
        if counted == executed:
            continue
        times = f"{operation} ×{max(1, count.calls[operation])}"
        if counted == 0:
            kind = "fused SDPA on CPU " if operation.endswith(("_for_cpu", "_backward")) else ""
            rows.append(f"torch counts {kind}{times} as 0: {executed:,} FLOPs missing")
        elif counted > executed and "attention" in operation:
            extra = counted - executed
            rows.append(f"torch counts causal {times} as dense: {extra:,} FLOPs too many")
        elif executed == 0:
            rows.append(f"torch counts {counted:,} FLOPs of {times}, which is no product here")
        else:
            gap = counted - executed
            rows.append(f"unexplained difference of {gap:+,} FLOPs in torch's count of {times}")
    return rows


def _fvcore_rows(count: TorchCount, fvcore: FvcoreCount) -> list[str]:
    """Return rows on products fvcore has no rule for, on its extras, and on the remainder."""
    gap = count.executed.total() - 2 * fvcore.macs.total()
    rows = []
    for operation, flops in sorted(count.executed.items()):
        base = operation.removeprefix("aten.").removesuffix("_")
        names = [f"aten::{base}", f"aten::{base}_"] if base in _SEEN_AS else []
        if "attention" in operation:
            names = ["aten::scaled_dot_product_attention"]
        seen = next((name for name in names if fvcore.uncounted[name]), None)
        if seen and flops:
            rows.append(
                f"fvcore does not know {seen.removeprefix('aten::')} "
                f"×{fvcore.uncounted[seen]}: {flops:,} FLOPs missing"
            )
            gap -= flops
    for name, macs in sorted(fvcore.macs.items()):
        if not any(product in name for product in _PRODUCTS):
            rows.append(f"fvcore counts {name} as {macs:,} MACs, which is no product")
            gap += 2 * macs
    if gap:
        rows.append(_remaining_gap(gap, fvcore, count.calls["aten.bmm"] - fvcore.batched))
    return rows


def _remaining_gap(gap: int, fvcore: FvcoreCount, dropped: int) -> str:
    """Return the row on the remaining gap between the products executed and fvcore's count.

    Causes, in this order: an autograd function that fvcore does not enter; batched products that
    its tracer ``dropped`` because no output needs them; its rules for broadcast ``matmul`` and
    ``einsum``, which are not 2·m·k·n.
    """
    boxes = [name for name in fvcore.uncounted if name.startswith(_BLACK_BOX)]
    if boxes and gap > 0:
        names = ", ".join(
            f"{name.removeprefix(_BLACK_BOX)} ×{fvcore.uncounted[name]}" for name in boxes
        )
        return f"fvcore does not look into the autograd function {names}: {gap:,} FLOPs missing"
    if dropped > 0 and gap > 0:
        return f"fvcore's tracer drops bmm ×{dropped}, which no output needs: {gap:,} FLOPs missing"
    suspects = [name for name in ("matmul", "einsum") if fvcore.macs[name]]
    if suspects:
        names = " and ".join(suspects)
        return f"fvcore's rule for {names} differs by {-gap:+,} FLOPs from the products executed"
    return f"unexplained difference of {-gap:+,} FLOPs in fvcore's count"


def peak_differences(predicted: int, peak: Peak, *, compiled: bool = False) -> list[str]:
    """Return rows that explain the measured peak by the predicted one; none if equal."""
    if _same_peak(predicted, peak.bytes):
        return []
    gap = peak.bytes - predicted
    if compiled:
        between = "between compiled code's peak and the closed form"
        return [f"{gap:+,} bytes {between}, which is that of the code as written"]
    if peak.kernel and 0 < gap <= peak.workspace:
        exact = _same_peak(predicted, peak.without_workspace)
        rest = "" if exact else f"; {format_bytes(peak.without_workspace)} without it"
        held = "" if gap == peak.workspace else f", of {peak.workspace:,} that it holds{rest}"
        return [f"kernel workspace: {gap:+,} bytes of the peak are {peak.kernel}'s own{held}"]
    causes = f"{_KNOWN_CAUSES} on CUDA: cuBLAS workspace, blocks rounded up, kernels' own memory"
    known = f" ({causes})" if peak.source.startswith("CUDA") else ""
    return [f"{_UNEXPLAINED} of {gap:+,} bytes {_PEAK}{known}"]


def _same_peak(predicted: int, measured: int) -> bool:
    return abs(measured - predicted) <= max(SCALARS, SAME_PEAK * measured)
