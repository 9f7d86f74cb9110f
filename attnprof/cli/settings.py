"""``--set k=v``: parameters for every listed mechanism that has them."""

from __future__ import annotations

from collections.abc import Sequence

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism


def parse_set(settings: Sequence[str] | None) -> dict[str, str]:
    """``k=v`` texts as a mapping; the last one of a name counts."""
    found: dict[str, str] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise RequestError(f"--set {text}: type a name, '=' and a value, like window=256")
        found[name.strip()] = value.strip()
    return found


def configured(names: Sequence[str], settings: Sequence[str] | None) -> list[Mechanism]:
    """The named mechanisms, each with those ``--set`` texts it has a parameter for.

    Raises :class:`RequestError` for an unknown name, and for a setting that none of them has.
    """
    return registry.configured(names, parse_set(settings))
