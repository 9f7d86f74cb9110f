"""Find the configuration that a name stands for.

:func:`config_of` is the one way from what a user writes to the fields of a ``config.json``.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from attnprof.models.described import as_typed, is_described
from attnprof.models.hub_config import read_configuration


def config_of(model: str | PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's ``config.json``, with its ``model_type``.

    ``model`` is a file or a folder, or the fields themselves; a description by sizes alone gets the
    type that has such layers. Raises :class:`RequestError` for what is no configuration.
    """
    if isinstance(model, Mapping):
        name, fields = "the configuration", dict(model)
    else:
        name, fields = str(model), read_configuration(Path(model))
    return as_typed(fields, name)[0] if is_described(fields) else fields
