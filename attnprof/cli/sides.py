"""What two names on the command line stand for: mechanisms, or modules of somebody's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnprof.cli.output import note
from attnprof.cli.settings import configured
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism


def sides(names: list[str], settings: list[str] | None, **how: Any) -> list[Any]:
    """Registered mechanisms with their settings; modules like ``my.py:A`` as targets to derive.

    ``how`` is for modules: ``args`` and ``inputs`` as in ``derive``, ``causal``, ``dtype``.
    """
    own = {name for name in names if ":" in name and not _is_mechanism(name)}
    registered = [name for name in names if name not in own]
    if (how["args"] or how["inputs"]) and not own:
        raise RequestError("--arg and --input are for modules like my.py:MyAttention")
    specs = dict(zip(registered, configured(registered, settings), strict=True))
    if not own:
        return [specs[name] for name in names]
    from attnprof.trace.finding import target_from

    args, inputs = how["args"], how["inputs"]
    targets = {
        name: replace(
            target_from(name, args, inputs, None, None, how["causal"], how["dtype"]),
            asked={"args": list(args or ()), "inputs": list(inputs or ())},
        )
        for name in own
    }
    for target in targets.values():
        for said in target.notes:
            note(f"{target.name}: {said}")
        if "d" not in target.symbols:
            note(f"{target.name}: its sizes are its own; head widths and heads do not reach it")
    return [specs[name] if name in specs else targets[name] for name in names]


def has_module(*found: Any) -> bool:
    """Whether one of the sides is a module, with derived costs only."""
    return any(not isinstance(side, Mechanism) for side in found)


def _is_mechanism(name: str) -> bool:
    """Whether ``path.py:Name`` is a specification of a mechanism and no torch module."""
    from attnprof.trace.loading import loaded

    found = loaded(name)
    return isinstance(found, type) and issubclass(found, Mechanism)
