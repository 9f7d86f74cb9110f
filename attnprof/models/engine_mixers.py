"""Which modules of a model engines run otherwise than transformers' Python, and which are left.

Attention that asks transformers' registry is replaced by a fused kernel; a recurrence, without
softmax, that has a form in chunks is one that engines have, too. Any other module that mixes rows
is counted as torch runs it, and :func:`notes` says so by its class.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from attnprof.models import engine_latent
from attnprof.models.kind_names import mixers
from attnprof.models.parts import places

#: What the code of a class looks attention up in, and names in that of a recurrence in chunks.
_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_CHUNKS = re.compile(r"chunk_(size|len|\w*(rule|kda|delta|scan))|num_blocks")


def unrecognised(model: Any) -> list[str]:
    """Return the classes of modules that mix rows, but neither ask the registry nor have chunks."""
    modules = dict(model.named_modules())
    classes = dict[str, None]()
    for path in _mixer_paths(modules, model):
        code = "".join(map(_code, map(type, modules[path].modules())))
        in_chunks = _CHUNKS.search(code) and "softmax" not in code
        if _REGISTRY not in code and not in_chunks:
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


def notes(model: Any) -> list[str]:
    """Return notes on what the engine's view takes otherwise, and on what it leaves as it is."""
    left = unrecognised(model)
    verb = "are" if len(left) > 1 else "is"
    told = f"{', '.join(left)} {verb} counted as torch runs it, not as an engine's kernel does"
    return [line for line in (engine_latent.note(model), told * bool(left)) if line]
