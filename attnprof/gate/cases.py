"""What the gate looks at: one workload of one mechanism or module, and what each side says of it.

A side is a revision: the baseline's or the current one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.measure.request import PointRequest
from attnprof.units import setting_text
from attnprof.user_code import is_place


@dataclass(frozen=True)
class Case:
    """One workload to gate: by ``rule`` in time (not at all where ``timed`` is false)."""

    request: PointRequest
    rule: str = "default"
    timed: bool = True
    formulas: bool = True

    @property
    def name(self) -> str:
        """What it is called in every output; dtype and shape belong to it."""
        return name_of(self.request)


def name_of(request: PointRequest) -> str:
    """``longformer[forward N=1024 d_model=512 h=8 window=64]``, with what is not the default.

    Of a module of somebody's own, constructor arguments are told; inputs follow from the sizes.
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
            usual = registry.get(request.mechanism).params
        except RequestError:  # a baseline may name what is not there any more
            usual = {}
        params = request.params.items()
        parts += [f"{name}={setting_text(v)}" for name, v in params if usual.get(name) != v]
    return f"{request.mechanism}[{' '.join(filter(None, parts))}]"


@dataclass(frozen=True)
class Operation:
    """An ATen operation at one line of code: how often, bytes it moves, FLOPs it counts.

    ``dtype`` and ``shape`` (``1×8×64``) are those of its result; "" where nobody wrote them down.
    """

    op: str
    part: str
    line: str
    times: int
    bytes_moved: int
    flops: int
    dtype: str = ""
    shape: str = ""


@dataclass(frozen=True)
class Counted:
    """What has no noise on one side: exact metrics, operations, closed forms.

    ``metrics`` are FLOPs by kind, ``bytes_moved``, ``peak_bytes``, ``parameters``,
    ``dispatched_operations``, of those the ``uncounted_operations`` that FLOPs leave out and those
    whose kernels take memory of their own that ``peak_bytes`` leaves out (``unknown_scratch``).
    ``formulas`` are over B, N, h, d, by quantity; ``no_formula`` says why there are none, and
    ``sizes`` are the case's. ``error`` says why there is nothing at all, and ``missing`` that the
    code asked for does not exist on this side.
    """

    metrics: Mapping[str, int] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)
    no_formula: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    missing: bool = False

    @property
    def runs(self) -> bool:
        """Whether the code exists on this side and ran."""
        return self.error is None and not self.missing

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Counted:
        """From JSON: operations are rows of their fields."""
        rows = [Operation(**row) for row in data.get("operations", ())]
        return cls(**{**data, "operations": rows})
