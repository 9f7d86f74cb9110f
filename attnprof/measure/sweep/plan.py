"""Which points a sweep has, and the name each one keeps from run to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from itertools import product
from typing import Any

from attnprof.errors import NotFoundError, RequestError
from attnprof.measure.batch import plan_points
from attnprof.measure.request import Budget, PointRequest, configured, is_module
from attnprof.processes import forks
from attnprof.processes.pool import run_apart
from attnprof.workload import Workload

#: What makes a point another point; how long it is measured does not.
_NOT_IN_KEY = frozenset({"budget", "counts", "error", "check"})


@dataclass(frozen=True)
class Grid:
    """All combinations of these values; ``params`` maps a parameter to the values it takes.

    A parameter goes to every mechanism that has it, as ``--set`` does; ``args`` and ``inputs`` to
    every module of somebody's own, as ``--arg`` and ``--input`` do.
    """

    attention: Sequence[str]
    seq_len: Sequence[int]
    d_model: Sequence[int] = (512,)
    num_heads: Sequence[int] = (8,)
    batch_size: Sequence[int] = (1,)
    dtype: Sequence[str] = ("float32",)
    phase: Sequence[str] = ("forward",)
    device: Sequence[str] = ("auto",)
    causal: Sequence[bool] = (False,)
    scope: Sequence[str] = ("layer",)
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    args: Sequence[str] = ()
    inputs: Sequence[str] = ()


def points_of(
    grids: Sequence[Grid],
    budget: Budget,
    *,
    counts: bool = False,
    limit_s: float | None = None,
    **more: Any,
) -> list[PointRequest]:
    """Every point once, mechanisms innermost: neighbours in time share a size.

    ``more`` are other fields of :class:`PointRequest`. Nothing of somebody's own code is run here:
    what a name stands for is asked apart, within ``limit_s`` seconds each. Raises
    :class:`RequestError` where heads do not divide a width, or a value is unknown.
    """
    found: dict[str, PointRequest] = {}
    is_own = partial(is_module_apart, limit_s=limit_s)
    for grid in grids:
        for values in product(*grid.params.values()):
            settings = dict(zip(grid.params, values, strict=True))
            chosen = configured(grid.attention, settings, grid.args, grid.inputs, is_own)
            named = dict(zip(grid.attention, chosen, strict=True))
            for scope, device in product(grid.scope, grid.device):
                points = plan_points(
                    named, _workloads(grid), scope=scope, device=device, budget=budget,
                    counts=counts, **more,
                )  # fmt: skip
                found.update({key_of(point): point for point in points})
    return list(found.values())


def _workloads(grid: Grid) -> list[Workload]:
    """All combinations of sizes, formats and phases, in the order of the grid."""
    sizes = product(
        grid.dtype, grid.phase, grid.causal, grid.batch_size, grid.d_model, grid.num_heads,
        grid.seq_len,
    )  # fmt: skip
    found = []
    for dtype, phase, causal, batch, width, heads, n in sizes:
        if width % heads:
            raise RequestError(
                f"{heads} heads do not divide d_model {width}: give grids of their own for other "
                "widths, or heads that divide all of them"
            )
        found.append(
            Workload(n, heads, width // heads, batch, causal=causal, phase=phase, dtype=dtype)
        )
    return found


def key_of(point: PointRequest, process: int = 0) -> str:
    """The name of a point (and of one process of several that measure it), the same every run."""
    plain = {k: v for k, v in point.to_dict().items() if k not in _NOT_IN_KEY}
    if not point.compiled:  # as it was before there was a choice: older files are resumed
        del plain["compiled"]
    text = json.dumps(plain, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{point.mechanism}-{point.seq_len}-{digest}/{process}"


#: Seconds an import may take, unless said otherwise.
LIMIT_S = 120.0


@cache
def is_module_apart(name: str, limit_s: float | None = None) -> bool:
    """:func:`attnprof.measure.request.is_module`, of code that may do anything when imported.

    Code that does not import counts as a module: its points, each tried apart, say why. Raises
    :class:`RequestError` where the name is none, or nothing has it.
    """
    if ":" not in name:
        return False
    import_module("torch")  # once, here: most modules import it

    def asked() -> tuple[bool, str, str]:
        forks.limit_memory()
        try:
            return is_module(name), "", ""
        except RequestError as error:
            if error.__cause__ and not isinstance(error, NotFoundError):
                return True, "", ""
            return True, type(error).__name__, str(error)

    answer = run_apart(asked, LIMIT_S if limit_s is None else limit_s)
    module, error, said = answer.value if answer.given else (True, "", "")
    if error:
        raise NotFoundError(said) if error == NotFoundError.__name__ else RequestError(said)
    return bool(module)
