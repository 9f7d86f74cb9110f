"""Second opinions on FLOPs: torch's own counter and fvcore, neither of which may allocate.

torch counts on fake tensors, fvcore traces on meta tensors: the N×N scores never exist.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from attnprof.measure.products import Products, watch_products
from attnprof.measure.request import PointRequest
from attnprof.trace.loading import contained, told


@dataclass(frozen=True)
class TorchCount:
    """FLOPs by operation: ``counted`` by torch, ``executed`` by our own rule, ``calls`` of each."""

    counted: Products
    executed: Products
    calls: Counter[str]

    @property
    def total(self) -> int:
        """What torch's counter says."""
        return sum(self.counted.values())


@dataclass(frozen=True)
class FvcoreCount:
    """Multiply-accumulates by operation, and what fvcore has no rule for, by calls.

    ``failed`` says why there is no count; the rest is empty then.
    """

    macs: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)
    failed: str | None = None

    @property
    def total(self) -> int | None:
        """What fvcore says, in multiply-accumulates."""
        return None if self.failed else sum(self.macs.values())


def count_with_torch(request: PointRequest) -> TorchCount:
    """``FlopCounterMode`` over the phase asked for, on fake tensors of the request's device."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.measure.subject import build_subject

    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = build_subject(request)
        subject.prepare()
        watch, executed, calls = watch_products()
        with FlopCounterMode(display=False) as counter, watch:
            subject.call()
    counted: Products = Counter()
    for operation, count in counter.get_flop_counts().get("Global", {}).items():
        counted[str(operation)] += int(count)
    return TorchCount(counted, executed, calls)


def count_on_meta(request: PointRequest) -> tuple[int, int]:
    """FLOPs by ``FlopCounterMode`` on meta tensors, and the number of products it saw.

    Quicker than fake tensors where a call slices a lot; the fused kernel is counted here, other
    than on a CPU.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.measure.subject import build_subject

    with torch.device("meta"):
        subject = build_subject(request, "meta")
        subject.prepare()
        watch, _, calls = watch_products()
        with FlopCounterMode(display=False) as counter, watch:
            subject.call()
    return int(counter.get_total_flops()), calls.total()


#: Arithmetic on sizes looks like arithmetic on tensors in a traced graph.
_SIZE_ARITHMETIC = ("mul", "floor_divide", "div", "sub", "remainder", "floordiv", "pow", "neg")


def count_with_fvcore(request: PointRequest) -> FvcoreCount:
    """``FlopCountAnalysis`` of a forward pass or a decoding step, on meta tensors.

    fvcore traces the module with ``torch.jit``: what cannot be traced has no count, and the
    reason is kept.
    """
    if request.phase not in ("forward", "decode"):
        return FvcoreCount(failed="fvcore counts forward passes only")
    try:
        with contained():
            return _fvcore(request)
    except Exception as error:  # noqa: BLE001 - a tracer may raise anything from a user's module
        return FvcoreCount(failed=told(error)[:160])


def _fvcore(request: PointRequest) -> FvcoreCount:
    import torch
    from fvcore.nn import FlopCountAnalysis

    from attnprof.measure.subject import build_subject, make_inputs

    with torch.device("meta"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = build_subject(request, "meta")
        inputs = make_inputs(request)
        subject.prepare()
        analysis = FlopCountAnalysis(_traceable(request, subject), tuple(inputs))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        analysis.tracer_warnings("none")
        real: Counter[str] = Counter()
        for name in _SIZE_ARITHMETIC:
            analysis.set_op_handle(f"aten::{name}", _tally(f"aten::{name}", real))
        with _quiet_logger():
            macs = analysis.by_operator()
            uncounted = Counter(analysis.unsupported_ops()) + real
    found = Counter({name: int(count) for name, count in macs.items() if count})
    return FvcoreCount(found, uncounted)


def _tally(name: str, real: Counter[str]) -> Any:
    """A rule that counts nothing and remembers operations whose result is no single number."""

    def rule(_: Any, outputs: Any) -> int:
        sizes = outputs[0].type().sizes() if hasattr(outputs[0].type(), "sizes") else []
        if sizes is None or len(sizes) > 0:
            real[name] += 1
        return 0

    return rule


def _traceable(request: PointRequest, subject: Any) -> Any:
    """What fvcore traces: inputs only, no flags; for decode one step."""
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


class _quiet_logger:  # noqa: N801 - used like the context managers of contextlib
    """fvcore logs every skipped operation; the report names them instead."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("fvcore.nn.jit_analysis")
        self._before = self._logger.level
        self._logger.setLevel(logging.ERROR)

    def __exit__(self, *error: object) -> None:
        self._logger.setLevel(self._before)
