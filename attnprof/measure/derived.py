"""What a point's code counts, operation by operation, on fake tensors: nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.measure.modules import UserModule, recorded, summed
from attnprof.measure.request import PointRequest

#: Operations that are followed before a run is given up; a thousand take about half a second.
OPERATIONS = 10_000


@dataclass(frozen=True)
class DerivedCount:
    """FLOPs of the point's phase and those of its products, or, without them, why in ``note``."""

    flops: int | None = None
    matmul_flops: int | None = None
    note: str | None = None


def count_derived(request: PointRequest, operations: int = OPERATIONS) -> DerivedCount:
    """The derived counts of a point, by one run at its shape."""
    from attnprof.trace.run.limits import TooLongError
    from attnprof.user_code import error_text

    try:
        if isinstance(request.spec, UserModule):  # its prediction is the same run
            table = request.spec.cost(request.workload)
        else:
            table = summed(recorded(run_of(request), request.workload, operations), request.phase)
    except TooLongError:
        return DerivedCount(note=f"derived counts are left out: over {operations:,} operations")
    except AttnprofError as error:
        return DerivedCount(note=f"no derived counts: {error}")
    except Exception as error:  # noqa: BLE001 - a plug-in's code may raise anything
        return DerivedCount(note=f"no derived counts: {error_text(error)}")
    left = table.uncounted
    note = f"derived counts are at least: they leave out {left}" if left else None
    return DerivedCount(int(table.total.flops), int(table.total.matmul_flops), note)


def run_of(request: PointRequest) -> Any:
    """What a point's phase runs, as a target: to decode, the step.

    Raises :class:`RequestError` where there is none.
    """
    target = target_of(request)
    if request.phase != "decode":
        return target
    if target.step is None:
        raise RequestError(f"{target.name} has no decoding step that attnprof knows")
    return target.step


def target_of(request: PointRequest) -> Any:
    """The point's module as a target. Raises :class:`RequestError` where it is none."""
    from attnprof import registry
    from attnprof.trace.request.mechanisms import mechanism_target

    if isinstance(request.spec, UserModule):
        return request.spec.target(request.workload)
    return mechanism_target(
        request.spec, request.scope, causal=request.causal, dtype=request.dtype,
        source=registry.module_of(request.mechanism),
    )  # fmt: skip


def derived_differences(mechanism: str, flops_formula: int, count: DerivedCount) -> list[str]:
    """Rows from the closed form's FLOPs to the derived ones, or why there are none."""
    rows = [] if count.note is None else [f"{mechanism}: {count.note}"]
    if count.flops is not None and count.flops != flops_formula:
        rows.append(
            f"{mechanism}: unexplained difference of {flops_formula - count.flops:+,} FLOPs "
            f"between the closed form and what was derived from the code"
        )
    return rows
