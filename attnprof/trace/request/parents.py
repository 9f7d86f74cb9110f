"""Guess a module's arguments and inputs from the models in its file that call it.

A model is derived like any class, and run until it calls the module: what it passes there, at
several sizes, becomes expressions (:mod:`.calls`). :func:`uses` is the entry point.
"""

import ast
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.request import signatures
from attnprof.trace.request.calls import Shape, UnlikeCallsError, Use, fitted, is_module, watched
from attnprof.trace.request.configurations import Configuration, names_around, taken_by
from attnprof.trace.request.given import Repair, Request
from attnprof.trace.request.messages import source_of
from attnprof.trace.request.modules import of_class
from attnprof.trace.request.target import Expression, Target
from attnprof.trace.request.texts import Named, Several
from attnprof.trace.request.tries import Tries
from attnprof.trace.request.tuples import base_of, folded
from attnprof.trace.run.runs import outcome

#: Models tried, operations of a run, seconds for all, and lengths of the first run in turn.
_MODELS, _OPERATIONS, _SECONDS, _LENGTHS = 6, 6000, 8.0, (256, 1024, 64)
#: Repairs of a model's own guesses, if its run does not get to the module.
_REPAIRS = 16
#: Sizes of the first run; each is doubled in turn, then all are tripled.
_FIRST_SIZES = {"B": 2, "h": 4, "d": 16}


def uses(
    owner: Any, request: Request, free: set[str], *, have: bool
) -> Iterator[tuple[str, Repair]]:
    """Yield guesses for a class as a model of its file calls it, with that model's name.

    Only models that have all the symbols ``free`` if ``have``, else only the others; each is run at
    a few lengths.
    """
    end = time.process_time() + _SECONDS
    for model in _models(owner):
        with suppress(AttnprofError):
            asked = _request_for(model, request)
            target = of_class(model, asked)
            if (free <= {*target.symbols}) == have:
                for call in _calls_at_lengths(owner, _reach_module(owner, model, asked, target)):
                    yield model.__name__, _repair(owner, request, call)
        if time.process_time() > end:
            return


def _request_for(model: Any, request: Request) -> Request:
    """Return the request for a model, with the typed arguments of its part that it takes, too."""
    taken = signatures.parameters_of_class(model, model.__name__)
    given = {name: x for name, x in request.given.items() if re.split(r"[.\[]", name)[0] in taken}
    return Request(model.__name__, given, {}, causal=False, dtype=request.dtype)


def _models(owner: Any) -> list[Any]:
    """Return classes of the same file that use the owner, directly or not, whole models first."""
    around, names = names_around(owner), _names_used(owner)
    users, using = [owner.__name__], list[str]()
    while users := [n for n in names if n not in using and names[n] & {*users}]:
        using += users
    order = sorted(using, key=lambda name: (not name.endswith("Model"), -using.index(name)))
    kinds = [kind for kind in map(around.get, order) if kind is not None and is_module(kind)]
    kinds = [kind for kind in kinds if not issubclass(owner, kind) and not _is_abstract(kind)]
    return kinds[:_MODELS]


def _names_used(owner: Any) -> dict[str, set[str]]:
    """Return the names that each class, function or table of the owner's file uses."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(source_of(sys.modules.get(owner.__module__))).body:
        defined = [getattr(node, "name", ""), *(getattr(x, "id", "") for x in _targets(node))]
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {name: names.get(name, set()) | used for name in defined if name}
    return names


def _targets(node: ast.AST) -> list[ast.expr]:
    return getattr(node, "targets", [])


def _is_abstract(kind: Any) -> bool:
    return getattr(kind.forward, "__name__", "") == "_forward_unimplemented"


# -- runs that end where the module is called ---------------------------------------------


def _calls_at_lengths(owner: Any, target: Target) -> Iterator[Use]:
    """Yield the module's first call in a model at each length, with expressions for sizes."""
    known = list[Use]()
    for length in _LENGTHS if "N" in target.symbols else _LENGTHS[:1]:
        base = _base(target, length)
        first = _first_call(owner, target, base)
        others = [{**base, name: 2 * size} for name, size in base.items()] if first else []
        others += [{name: 3 * size for name, size in base.items()}]
        runs = [first, *(first and _first_call(owner, target, sizes) for sizes in others)]
        with suppress(UnlikeCallsError):
            if (use := _fitted_call(base, [run for run in runs if run])) and use not in known:
                known.append(use)
                yield use


def _reach_module(owner: Any, model: Any, asked: Request, target: Target) -> Target:
    """Return the model's target with the first guesses by which a run gets to the module."""
    base = _base(target, _LENGTHS[0])
    error = _run(owner, target, base, [])
    if error is None:
        return target

    def fails(other: Target) -> Exception | None:
        failed: Exception | None = _run(owner, other, _base(other, _LENGTHS[0]), [])
        return failed

    tries = Tries(partial(of_class, model), asked, model, fails, _REPAIRS, _SECONDS)
    return tries.until_one_runs(target, error) or target


def _base(target: Target, length: int) -> dict[str, int]:
    return {name: {**_FIRST_SIZES, "N": length}.get(name, 16) for name in target.symbols}


def _run(owner: Any, target: Target, sizes: Mapping[str, int], found: list[Use]) -> Any:
    """Run a model up to its call of the owner: add that to ``found``, or return the error."""
    with watched(owner, found.append):
        failed = outcome(target, sizes, training=False, most=_OPERATIONS)
    return failed if isinstance(failed, Exception) and not found else None


def _fitted_call(base: Mapping[str, int], runs: list[Use]) -> Use | None:
    """Return the call with expressions for its sizes, or None if not every run has one."""
    if len(runs) < len(base) + 2:
        return None
    (first, *others), fit = runs, partial(fitted, base)
    return Use(
        {n: fit(x, [run.arguments.get(n) for run in others]) for n, x in first.arguments.items()},
        {n: fit(x, [run.inputs.get(n) for run in others]) for n, x in first.inputs.items()},
    )


def _first_call(owner: Any, target: Target, sizes: Mapping[str, int]) -> Use | None:
    """Return the module's first call in a run; with values, or on real tensors, if needed."""
    calls = list[Use]()
    for how in (target, replace(target, routed=True), replace(target, real=True)):
        failed = _run(owner, how, sizes, calls)
        if calls or not type(failed).__module__.startswith("torch."):
            break
    return calls[0] if calls else None


def _repair(owner: Any, request: Request, use: Use) -> Repair:
    """Return a call as guesses for all that was not typed."""
    parameters = signatures.parameters_of_class(owner, owner.__name__)
    config = (taken_by(owner, parameters) or ("",))[0]
    given = {*map(base_of, request.given), config}
    args = {n: _as_argument(x) for n, x in folded(use.arguments).items() if n not in given}
    kept = {*map(base_of, request.inputs)}
    inputs = {n: _as_input(x) for n, x in use.inputs.items() if base_of(n) not in kept}
    return Repair(args, {name: text for name, text in inputs.items() if text})


def _as_argument(value: Any) -> Any:
    """Return a value as ``--arg`` takes it, or as an object still to be made."""
    if isinstance(value, type):
        return Named(f"{value.__module__}:{value.__qualname__}")
    if isinstance(value, Configuration):
        fields = folded(value.fields)
        return replace(value, fields={name: _as_argument(x) for name, x in fields.items()})
    return Several(value) if isinstance(value, tuple | list | dict) else value


def _as_input(value: Any) -> Any:
    """Return a value as ``--input`` takes it; "" for an object that nobody can type."""
    if isinstance(value, Shape):
        dims = ", ".join(value.sizes) + ("," if len(value.sizes) == 1 else "")
        return f"{dims or '()'} {value.dtype}".strip()
    if isinstance(value, Expression):
        return f"={value.text}"
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if plain else ""
