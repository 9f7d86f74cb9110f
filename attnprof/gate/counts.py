"""Count a case (:func:`count`): the exact costs of a workload on one side of a comparison.

A side is a revision: the baseline's or the current one. It is counted by one run on fake tensors,
the same to the last byte each time.
"""

import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnprof import registry
from attnprof.errors import AttnprofError, CannotRunError, NotFoundError, RequestError
from attnprof.measure.counters import run_of, target_of
from attnprof.measure.request import PointRequest
from attnprof.trace.events import KINDS, QUANTITIES, flops_of, totals
from attnprof.trace.request.lookup import first_guesses_alone
from attnprof.units import grouped, setting_text
from attnprof.user_code import error_text, is_place


@dataclass(frozen=True)
class Case:
    """A workload to compare; its times, if ``timed``, are judged by ``rule``."""

    request: PointRequest
    rule: str = "default"
    timed: bool = True
    formulas: bool = True

    @property
    def name(self) -> str:
        """Return the case's name in every output; number format and shape belong to it."""
        return name_of(self.request)


def name_of(request: PointRequest) -> str:
    """Return ``longformer[forward N=1024 d_model=512 h=8 window=64]``, defaults left out.

    For a user's module constructor arguments are named; its inputs follow from the sizes.
    """
    parts = [
        request.phase,
        "causal" if request.causal else "",
        f"B={request.batch_size}" if request.batch_size != 1 else "",
        f"N={request.seq_len} d_model={request.d_model} h={request.num_heads}",
        request.scope if request.scope != "layer" else "",
        request.dtype if request.dtype != "float32" else "",
        request.device if request.device != "cpu" else "",
        "compiled" if request.compiled else "",
    ]
    if is_place(request.mechanism):
        parts += [text.replace(" ", "") for text in request.params.get("args", ())]
    else:
        try:
            defaults = registry.get(request.mechanism).params
        except RequestError:  # a baseline may name a mechanism that is gone
            defaults = {}
        params = request.params.items()
        parts += [f"{name}={setting_text(v)}" for name, v in params if defaults.get(name) != v]
    return f"{request.mechanism}[{' '.join(filter(None, parts))}]"


@dataclass(frozen=True)
class Work:
    """An ATen operation of one part at a line of code: calls, bytes moved, FLOPs."""

    op: str
    part: str
    line: str
    times: int
    bytes_moved: int
    flops: int

    @property
    def is_work(self) -> bool:
        """Return whether it moves or counts anything; a view does not."""
        return bool(self.bytes_moved or self.flops)


@dataclass(frozen=True)
class Operation(Work):
    """An operation that ran, with ``dtype`` and ``shape`` (``1×8×64``) of its result, or ""."""

    dtype: str = ""
    shape: str = ""


@dataclass(frozen=True)
class Counted:
    """Exact costs of a case on one side: metrics, operations, closed forms over B, N, h, d.

    Of the ``dispatched_operations``, ``uncounted_operations`` are left out of FLOPs. Kernels of
    ``unknown_scratch`` take memory that ``peak_bytes`` leaves out. ``no_formula`` is the reason why
    closed forms are missing, ``error`` why everything is; ``missing`` is true if the code does not
    exist on this side. ``file`` holds the module's code, ``files`` all code loaded for it without
    installed packages. ``as_guessed`` is true if it ran with the first guess of the inputs.
    """

    metrics: Mapping[str, int] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)
    no_formula: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    missing: bool = False
    file: str = ""
    files: Sequence[str] = ()
    as_guessed: bool = False

    @property
    def runs(self) -> bool:
        """Return whether the code exists on this side and ran."""
        return self.error is None and not self.missing

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Counted":
        """Return the counts read from JSON, where operations are rows of their fields."""
        rows = [Operation(**row) for row in data.get("operations", ())]
        return cls(**{**data, "operations": rows, "files": tuple(data.get("files", ()))})


#: A run of more operations is given up; a thousand take about a fifth of a second.
OPERATIONS = 100_000

if TYPE_CHECKING:
    from attnprof.trace.report.derivation import PhaseForms
    from attnprof.trace.request.target import Target

_TOTALS = (*KINDS, "flops", "bytes_moved", "peak_bytes", "parameters")


def count(case_request: PointRequest, formulas: bool, alone: bool = False) -> Counted:
    """Return the exact metrics, operations and, with ``formulas``, closed forms of a case's phase.

    Code runs eagerly. With ``alone`` only the first guess of inputs is tried; otherwise the next
    ones are tried where the code fails.
    """
    guesses = first_guesses_alone() if alone else nullcontext()
    with _repeatable(case_request.seed), guesses:
        try:
            counted = _counts_of_run(case_request)
        except NotFoundError as error:
            return Counted(error=str(error), missing=True)
        except Exception as error:  # noqa: BLE001 - the gated code may raise anything
            return Counted(error=_reason(error))
        return _with_formulas(counted, case_request) if formulas else counted


def _counts_of_run(request: PointRequest) -> Counted:
    """Return metrics and operations of one run on fake tensors."""
    from attnprof.trace.solve.count import count

    sizes = request.workload.by_symbol()
    trace = count(run_of(request), sizes, request.phase, OPERATIONS)
    calls = list(trace.part(request.phase))
    all_totals = totals(trace, request.phase)
    metrics = {name: int(all_totals[name]) for name in _TOTALS}
    metrics["dispatched_operations"] = len(calls)
    metrics["uncounted_operations"] = sum(bool(call.uncounted) for call in calls)
    metrics["unknown_scratch"] = sum(bool(call.scratch) for call in calls)
    # calls of the same operation at the same line together, in the order they first ran
    groups = grouped(calls, lambda c: (c.op, c.part, c.line, c.dtype, "×".join(map(str, c.shape))))
    operations = []
    for (op, part, line, dtype, shape), group in groups.items():
        moved, flops = sum(int(c.bytes_moved) for c in group), int(flops_of(group))
        operations.append(Operation(op, part, line, len(group), moved, flops, dtype, shape))
    return Counted(metrics, operations, sizes=sizes)


def _with_formulas(counts: Counted, request: PointRequest) -> Counted:
    """Return the counts with closed forms over the request's sizes, or why there are none.

    If some are missing, they are derived again with sizes of 1 as numbers.
    """
    ones = {name: size for name, size in counts.sizes.items() if size == 1}
    formulas: dict[str, str] = {}
    reasons: list[str] = []
    for sizes in ({}, ones) if ones else ({},):
        try:
            target = target_of(request).fixed(**sizes)
            new, left = _agreeing_formulas(_forms(target, counts.sizes, request.phase), counts)
        except CannotRunError as error:  # nor is there a form with fewer sizes free
            reasons.append(str(error))
            break
        except Exception as error:  # noqa: BLE001 - the gated code may raise anything
            new, left = {}, [_reason(error)]
        formulas = {**new, **formulas}
        reasons += left
        if len(formulas) == len(QUANTITIES):
            break
    missing = ", ".join(name for name in QUANTITIES if name not in formulas)
    return replace(
        counts,
        formulas={name: formulas[name] for name in QUANTITIES if name in formulas},
        no_formula=f"{missing}: {'; '.join(dict.fromkeys(reasons))}" if missing else "",
    )


def _forms(target: "Target", sizes: Mapping[str, int], phase: str) -> "PhaseForms":
    """Derive closed forms for the branch that code takes at these sizes."""
    from attnprof.trace.solve.derive import derived

    sizes_above_one = {name: sizes[name] for name in target.symbols if sizes[name] > 1}
    return derived(target, [phase], sizes_above_one).phases[phase]


def _agreeing_formulas(forms: "PhaseForms", counts: Counted) -> tuple[dict[str, str], list[str]]:
    """Return the texts of formulas that agree with the run's counts, and why others are missing."""
    from attnprof.trace.report.records import text, value_at

    texts: dict[str, str] = {}
    reasons = list(forms.notes)
    for name in QUANTITIES:
        expression = forms.formulas[name].expression
        written = text(expression)
        if written is None:
            reasons = reasons or ["none was found"]
        elif value_at(expression, counts.sizes) == counts.metrics[name]:
            texts[name] = written
        else:
            reasons.append("the closed form does not hold at this shape")
    return texts, reasons


def _reason(error: Exception) -> str:
    """Return why a case cannot be counted, for its record."""
    from attnprof.trace.run.limits import TooLongError
    from attnprof.trace.solve.small_runs import value_reason

    if isinstance(error, TooLongError):
        return f"it runs {error}, which is too long to follow: gate it at a shorter length"
    if not isinstance(error, AttnprofError):
        return value_reason(error)
    raised = error_text(error.__cause__) if error.__cause__ else ""
    if raised and str(error).find(raised) > 0:  # the code's own message comes first
        return f"{raised}: {str(error).replace(f': {raised}', '', 1)}"
    return str(error)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Run the body so that counts do not depend on the moment or on earlier random draws.

    The garbage collector is off, since it would free tensors at chance moments and change the peak.
    Random numbers of constructors come from ``seed``. Both are restored afterwards.
    """
    import numpy as np
    import torch

    collecting, python_state = gc.isenabled(), random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - user code may use it
    gc.disable()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - see above
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - see above
        if collecting:
            gc.enable()
