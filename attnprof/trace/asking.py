"""One request to one derivation: find the target, try it, derive it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnprof.errors import CannotRunError, RequestError, closest
from attnprof.trace.derivation import Derivation
from attnprof.trace.deriving import derive_target
from attnprof.trace.finding import Texts, target_from, target_of
from attnprof.trace.totals import PHASES
from attnprof.trace.trying import tried, why
from attnprof.workload import DTYPES, Workload

if TYPE_CHECKING:
    from attnprof.trace.target import Target


def derived(target: Target, phases: Sequence[str], asked: Mapping[str, int]) -> Derivation:
    """Formulas of a target; its guesses and inputs go with them.

    Raises :class:`RequestError` where it does not run at all.
    """
    wrong = [phase for phase in phases if phase not in PHASES]
    if wrong or not phases:
        named = wrong[0] if wrong else ""
        raise RequestError(f"phase '{named}' is not derived: {closest(named, list(PHASES))}")
    unknown = [name for name in asked if name not in target.symbols]
    if unknown:
        raise RequestError(
            f"--at {unknown[0]}={asked[unknown[0]]}: {target.name} has no size {unknown[0]}; its "
            f"arguments and inputs use {', '.join(target.symbols) or 'none'}"
        )
    target = tried(target, asked, training=not {"backward", "train"}.isdisjoint(phases))
    try:
        found = derive_target(target, phases, asked)
    except Exception as error:
        if not type(error).__module__.startswith("torch."):
            raise
        raise CannotRunError(f"{target.name} cannot be derived: {why(error)}") from error
    inputs = tuple(target.spelled_inputs)
    return replace(found, notes=target.notes, inputs=inputs, dtype=target.dtype)


def derive_anything(
    thing: Any,
    workload: Workload | None,
    *,
    args: Texts,
    inputs: Texts,
    phases: Sequence[str] | None,
    at: Mapping[str, int] | None,
    dtype: str,
    scope: str | None,
    causal: bool,
    params: Mapping[str, Any],
) -> Derivation:
    """The same for what Python passes; a workload gives the shape, the number format, the mask."""
    if workload is not None:
        dtype, causal = workload.dtype, workload.causal or causal
    if dtype not in DTYPES:
        raise RequestError(f"unknown dtype '{dtype}': {closest(dtype, list(DTYPES))}")
    how = (args, inputs, params, scope, causal, dtype)
    if isinstance(thing, str):
        target = target_from(thing, *how)
    else:
        width = None if workload is None else workload.d_model
        target = target_of(thing, _name(thing), *how, width)
    asked = {} if workload is None else _shape(workload, target)
    if phases is None:
        phases = ("forward", "backward")
        if workload is not None and workload.phase != "forward":
            phases = (workload.phase,)
    return derived(target, phases, {**asked, **(at or {})})


def _name(thing: Any) -> str:
    """What to call a Python object."""
    if isinstance(thing, type) or inspect.isroutine(thing):
        name = str(thing.__name__)
        return "module" if name == "<lambda>" else name
    return type(thing).__name__


def _shape(workload: Workload, target: Target) -> dict[str, int]:
    """The workload's sizes by the target's symbols."""
    sizes = {
        "B": workload.batch_size,
        "N": workload.seq_len,
        "h": workload.num_heads,
        "d": workload.head_dim,
    }
    return {name: size for name, size in sizes.items() if name in target.symbols}
