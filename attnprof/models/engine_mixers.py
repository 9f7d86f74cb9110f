"""Which modules of a model engines run otherwise than transformers' Python, and which are left.

Attention that asks transformers' registry is replaced by a fused kernel, a recurrence that calls a
fallback of a kernel by that kernel. Any other module that mixes rows is counted as torch runs it,
and :func:`notes` says so by its class.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from attnprof.models import engine_latent, engine_recurrence
from attnprof.models.kind_names import mixers
from attnprof.models.parts import places

#: What the code of a class looks attention up in.
_REGISTRY = "ALL_ATTENTION_FUNCTIONS"


def unrecognised(model: Any) -> list[str]:
    """Return the classes of modules that mix rows, and neither ask the registry nor for kernels."""
    return _classes(model, lambda part, code: _REGISTRY in code or _runs_kernels(part, code))


def recurrent(model: Any) -> list[str]:
    """Return the classes of modules whose recurrence runs as a kernel of ours."""
    return _classes(model, lambda part, code: not _runs_kernels(part, code))


_runs_kernels = engine_recurrence.runs_kernels


def _classes(model: Any, leaves_out: Callable[[Any, str], bool]) -> list[str]:
    """Return the classes of modules that mix rows, but for some, by the module and its code."""
    modules = dict(model.named_modules())
    classes = dict[str, None]()
    for path in _mixer_paths(modules, model):
        code = "".join(map(_code, map(type, modules[path].modules())))
        if not leaves_out(modules[path], code):
            classes[type(modules[path]).__name__] = None
    return list(classes)


def _mixer_paths(modules: Mapping[str, Any], model: Any) -> Iterator[str]:
    """Yield the paths of the modules that mix rows, layer by layer."""
    where = places(model)
    for layer in dict.fromkeys(place.layer for place in where.values() if place.layer):
        yield from mixers(modules, layer, where)


@cache
def _code(kind: type) -> str:
    """Return the source of a class of transformers, "" of any other."""
    return inspect.getsource(kind) if kind.__module__.startswith("transformers.") else ""


def notes(model: Any, view: str = "engine") -> list[str]:
    """Return notes on what a view takes otherwise than torch, and on what it leaves as it is."""
    left = unrecognised(model)
    verb = "are" if len(left) > 1 else "is"
    lines = (
        engine_latent.note(model) if view == "engine" else "",
        engine_recurrence.note(model, recurrent(model), view),
        f"{', '.join(left)} {verb} counted as torch runs it, not as an engine's kernel does"
        if left else "",
        "bytes and peaks are those of a run with fused kernels: a definition has none"
        if view == "definition" else "",
    )  # fmt: skip
    return [*filter(None, lines)]
