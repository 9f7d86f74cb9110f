"""What a case counts on this side: one run on fake tensors, the same to the last byte each time."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError, NotFoundError
from attnprof.gate.cases import Counted, Operation
from attnprof.measure.modules import sizes_of
from attnprof.measure.request import PointRequest
from attnprof.trace.events import KINDS, QUANTITIES, Call

_TOTALS = (*KINDS, "flops", "bytes_moved", "peak_bytes", "parameters")


def count(case_request: PointRequest, formulas: bool) -> Counted:
    """Exact metrics, operations and (where asked) closed forms of a case's phase, of eager code.

    Nothing is raised for what the gated code does: ``missing`` and ``error`` say it.
    """
    with _repeatable(case_request.seed):
        try:
            found = _counted(case_request)
        except NotFoundError as error:
            return Counted(error=str(error), missing=True)
        except Exception as error:  # noqa: BLE001 - the gated code may raise anything
            return Counted(error=_why(error))
        return _with_formulas(found, case_request) if formulas else found


def _counted(request: PointRequest) -> Counted:
    from attnprof.measure.derived import run_of
    from attnprof.trace.runs import record
    from attnprof.trace.shots import limit
    from attnprof.trace.totals import totals
    from attnprof.trace.verification import A_LONG_RUN

    trace = record(
        run_of(request),
        sizes_of(request.workload),
        training=request.phase in ("backward", "train"),
        before_each=limit(A_LONG_RUN),
    )
    calls = list(trace.part(request.phase))
    found = totals(trace, request.phase)
    metrics = {name: int(found[name]) for name in _TOTALS}
    return Counted({**metrics, "dispatched_operations": len(calls)}, _operations(calls))


def _operations(calls: Sequence[Call]) -> list[Operation]:
    """Calls of the same operation at the same line together, in the order they first ran."""
    groups: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.op, call.part, call.line), []).append(call)
    return [
        Operation(*key, len(group), sum(int(c.bytes_moved) for c in group), _flops(group))
        for key, group in groups.items()
    ]


def _flops(calls: Sequence[Call]) -> int:
    from attnprof.trace.origins import flops_of

    return int(flops_of(calls))


def _with_formulas(found: Counted, request: PointRequest) -> Counted:
    """The same with closed forms over the request's sizes, or with the reason for having none."""
    from attnprof.trace.reporting import text

    try:
        forms = _forms(request)
    except Exception as error:  # noqa: BLE001 - the gated code may raise anything
        return replace(found, no_formula=_why(error))
    formulas = {name: text(forms.formulas[name].expression) for name in QUANTITIES}
    known = {name: formula for name, formula in formulas.items() if formula is not None}
    missing = [name for name in QUANTITIES if name not in known]
    reasons = "; ".join(dict.fromkeys(forms.notes)) or "none was found"
    said = f"{', '.join(missing)}: {reasons}" if known else reasons
    return replace(found, formulas=known, no_formula=said if missing else "")


def _forms(request: PointRequest) -> Any:
    """Closed forms of the branch the request takes, in all sizes.

    A size of 1 is a case of its own (a copy becomes a view) and is asked for only where there is
    no form for all the others.
    """
    from attnprof.measure.derived import target_of
    from attnprof.trace.asking import derived

    target, sizes = target_of(request), sizes_of(request.workload)
    asked = {name: sizes[name] for name in target.symbols}
    free = {name: size for name, size in asked.items() if size > 1}
    try:
        return derived(target, [request.phase], free).phases[request.phase]
    except CannotRunError:
        if free == asked:
            raise
    return derived(target, [request.phase], asked).phases[request.phase]


def _why(error: Exception) -> str:
    from attnprof.trace.trying import why

    return str(error) if isinstance(error, AttnprofError) else why(error)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Nothing inside depends on when it runs.

    Garbage is not collected at chance moments, which would change what is held at the peak, and
    what constructors draw comes from the seed. Everything is as before afterwards.
    """
    import numpy as np
    import torch

    collecting, plain, other = gc.isenabled(), random.getstate(), np.random.get_state()  # noqa: NPY002 - what others may use
    gc.disable()
    try:
        with torch.random.fork_rng(devices=[]):
            _seed(seed, torch, np)
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(other)  # noqa: NPY002 - see above
        if collecting:
            gc.enable()


def _seed(seed: int, torch: Any, np: Any) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
