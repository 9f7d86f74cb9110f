"""Second opinions on FLOPs: torch's counter, fvcore, and our own count of the operations.

torch counts on fake tensors, fvcore traces on meta tensors: the N×N scores never exist. A number
that differs from the closed form gets a row: the cause, or "unexplained", and the amount.
"""

import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.measure.memory import Peak
from attnprof.measure.request import PointRequest, UserModule, counted
from attnprof.measure.subject import build_subject, make_inputs
from attnprof.record import ProfileRecord
from attnprof.units import format_bytes
from attnprof.user_code import contained, error_text

#: Operations after which a run is given up; a thousand take about half a second.
OPERATIONS = 10_000
#: FLOPs by operation name, ``aten.bmm`` and so on.
Products = Counter[str]


@dataclass(frozen=True)
class TorchCount:
    """FLOPs by operation: as ``counted`` by torch, as ``executed`` by our rules; and ``calls``."""

    counted: Products
    executed: Products
    calls: Counter[str]


@dataclass(frozen=True)
class FvcoreCount:
    """Multiply-accumulates by operation, and calls that fvcore has no rule for.

    ``batched`` is the number of batched products that it saw. ``failed`` says why there is no
    count; the other fields are empty then.
    """

    macs: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)
    batched: int = 0
    failed: str | None = None


def count_with_torch(request: PointRequest, *, meta: bool = False) -> TorchCount:
    """Count a phase with torch's ``FlopCounterMode``, on fake tensors of its device.

    ``meta`` tensors are quicker if a call slices a lot. On them the fused attention kernel is
    counted; on fake CPU tensors it is not.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    mode: Any = torch.device("meta")
    if not meta:
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        subject = build_subject(request, "meta" if meta else None)
        subject.prepare()
        watch, executed, calls = watch_products()
        with FlopCounterMode(display=False) as counter, watch:
            subject.call()
    counts = counter.get_flop_counts().get("Global", {})
    counted = Counter({str(operation): int(count) for operation, count in counts.items()})
    return TorchCount(counted, executed, calls)


#: Arithmetic on sizes looks like arithmetic on tensors in a traced graph.
_SIZE_ARITHMETIC = ("mul", "floor_divide", "div", "sub", "remainder", "floordiv", "pow", "neg")


def count_with_fvcore(request: PointRequest) -> FvcoreCount:
    """Count a forward pass or decoding step with ``FlopCountAnalysis``, or say why it fails."""
    if request.phase not in ("forward", "decode"):
        return FvcoreCount(failed="fvcore counts forward passes only")
    # a trace that fails leaves pieces in torch's tracer, which is each thread's own: another trace
    # in the same thread can crash
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_trace_with_fvcore, request).result()


def _trace_with_fvcore(request: PointRequest) -> FvcoreCount:
    import torch
    from fvcore.nn import FlopCountAnalysis
    from fvcore.nn.jit_handles import bmm_flop_jit

    real: Counter[str] = Counter()
    batched: Counter[str] = Counter()
    try:
        with contained(), torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject = build_subject(request, "meta")
            inputs = make_inputs(request)
            subject.prepare()
            analysis = FlopCountAnalysis(_module_to_trace(request, subject), tuple(inputs))
            analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
            analysis.tracer_warnings("none")
            for name in _SIZE_ARITHMETIC:
                analysis.set_op_handle(f"aten::{name}", _counting_rule(f"aten::{name}", real))
            analysis.set_op_handle("aten::bmm", _counting_rule("bmm", batched, bmm_flop_jit))
            macs = analysis.by_operator()
            uncounted = Counter(analysis.unsupported_ops()) + real
    except Exception as error:  # noqa: BLE001 - a tracer may raise anything from a user's module
        return FvcoreCount(failed=error_text(error)[:160])
    counts = Counter({name: int(count) for name, count in macs.items() if count})
    return FvcoreCount(counts, uncounted, batched.total())


def _counting_rule(name: str, real: Counter[str], count: Any = lambda *_: 0) -> Any:
    """Wrap a rule of fvcore's: add to ``real`` each call whose result is more than one number."""

    def rule(inputs: Any, outputs: Any) -> Any:
        sizes = outputs[0].type().sizes() if hasattr(outputs[0].type(), "sizes") else []
        if sizes is None or len(sizes) > 0:
            real[name] += 1
        return count(inputs, outputs)

    return rule


def _module_to_trace(request: PointRequest, subject: Any) -> Any:
    """Return the module as fvcore traces it: tensors in, no flags; to decode, one step."""
    from torch import nn

    class Call(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.module

        def forward(self, *inputs: Any) -> Any:
            if request.phase == "decode":
                return self.inner.step(*inputs, subject.state)[0]
            return self.inner(*inputs, causal=request.causal)

    return Call()


def watch_products() -> tuple[Any, Products, Counter[str]]:
    """Return a mode, and the FLOPs (by the rules of derived counts) and calls that it fills in."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from attnprof.trace.rules import cost_of

    flops: Products = Counter()
    calls: Counter[str] = Counter()

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            products = cost_of(func, out, args, kwargs or {}).counts.get("matmul_flops", 0)
            if products:
                flops[str(func.overloadpacket)] += int(products)
                calls[str(func.overloadpacket)] += 1
            return out

    mode: Any = Watch
    return mode(), flops, calls


@dataclass(frozen=True)
class DerivedCount:
    """FLOPs of the point's phase and of its products; if None, ``note`` says why."""

    flops: int | None = None
    matmul_flops: int | None = None
    note: str | None = None


def count_derived(request: PointRequest, operations: int = OPERATIONS) -> DerivedCount:
    """Return the derived counts of a point, from one run at its shape."""
    from attnprof.trace.run.limits import TooLongError

    try:
        if isinstance(request.spec, UserModule):  # its prediction is the same run
            table = request.spec.cost(request.workload)
        else:
            table = counted(run_of(request), request.workload, operations)
    except TooLongError:
        return DerivedCount(note=f"derived counts are left out: over {operations:,} operations")
    except AttnprofError as error:
        return DerivedCount(note=f"no derived counts: {error}")
    except Exception as error:  # noqa: BLE001 - a plug-in's code may raise anything
        return DerivedCount(note=f"no derived counts: {error_text(error)}")
    left = ", ".join(table.notes)
    note = f"derived counts are at least: they leave out {left}" if left else None
    return DerivedCount(int(table.total.flops), int(table.total.matmul_flops), note)


def run_of(request: PointRequest) -> Any:
    """Return the target that a phase runs (to decode, its step); RequestError if it has none."""
    target = target_of(request)
    if request.phase == "decode" and target.step is None:
        raise RequestError(f"{target.name} has no decoding step that attnprof knows")
    return target.step if request.phase == "decode" else target


def target_of(request: PointRequest) -> Any:
    """Return the point's module as a target; :class:`RequestError` if it cannot be one."""
    from attnprof import registry
    from attnprof.trace.request.lookup import mechanism_target

    if isinstance(request.spec, UserModule):
        return request.spec.target(request.workload)
    return mechanism_target(
        request.spec, request.scope, causal=request.causal, dtype=request.dtype,
        source=registry.module_of(request.mechanism),
    )  # fmt: skip


#: Peaks nearer than this share of the measured one are the same, or nearer than these bytes:
#: autograd's engine holds a scalar or two of its own.
SAME_PEAK, SCALARS = 1e-3, 64
#: Words of a row on an unexplained difference, and on a difference of peaks.
_UNEXPLAINED, _PEAK, _KNOWN_CAUSES = "unexplained difference", "in peak memory", "known causes"
#: Products that fvcore has no rule for, or not for all of their spellings.
_SEEN_AS = ("baddbmm", "addbmm", "addmm", "mv", "addmv", "dot", "vdot")
#: How fvcore names an ``autograd.Function`` it cannot see into.
_BLACK_BOX = "prim::PythonOp."
#: fvcore's own names of products; its other counts are of normalisations and the like.
_PRODUCTS = ("linear", "addmm", "mm", "bmm", "matmul", "einsum", "conv")


def counter_differences(formula: int, torch_count: TorchCount, fvcore: FvcoreCount) -> list[str]:
    """Return a row for each step from the formula's ``matmul_flops`` to both counters' FLOPs."""
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
        gap, times = counted - executed, f"{operation} ×{max(1, count.calls[operation])}"
        if gap == 0:
            continue
        if counted == 0:
            kind = "fused SDPA on CPU " if operation.endswith(("_for_cpu", "_backward")) else ""
            rows.append(f"torch counts {kind}{times} as 0: {executed:,} FLOPs missing")
        elif gap > 0 and "attention" in operation:
            rows.append(f"torch counts causal {times} as dense: {gap:,} FLOPs too many")
        elif executed == 0:
            rows.append(f"torch counts {counted:,} FLOPs of {times}, which is no product here")
        else:
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
        unknown = next((name for name in names if fvcore.uncounted[name]), None)
        if unknown and flops:
            rows.append(
                f"fvcore does not know {unknown.removeprefix('aten::')} "
                f"×{fvcore.uncounted[unknown]}: {flops:,} FLOPs missing"
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
        remainder = "" if gap == peak.workspace else f", of {peak.workspace:,} that it holds{rest}"
        return [f"kernel workspace: {gap:+,} bytes of the peak are {peak.kernel}'s own{remainder}"]
    causes = f"{_KNOWN_CAUSES} on CUDA: cuBLAS workspace, blocks rounded up, kernels' own memory"
    causes_text = f" ({causes})" if peak.source.startswith("CUDA") else ""
    return [f"{_UNEXPLAINED} of {gap:+,} bytes {_PEAK}{causes_text}"]


def _same_peak(predicted: int, measured: int) -> bool:
    return abs(measured - predicted) <= max(SCALARS, SAME_PEAK * measured)
