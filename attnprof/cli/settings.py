"""``--set k=v``: parameters for every listed mechanism that has them."""

from __future__ import annotations

from collections.abc import Sequence

from attnprof import registry
from attnprof.errors import RequestError, closest
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


def configured(
    names: Sequence[str], settings: Sequence[str] | dict[str, str] | None
) -> list[Mechanism]:
    """The named mechanisms, each with those settings it has a parameter for.

    Raises :class:`RequestError` for an unknown name, and for a setting that none of them has.
    """
    values = settings if isinstance(settings, dict) else parse_set(settings)
    found = [registry.get(name) for name in names]
    known = {name for mechanism in found for name in mechanism.parameter_names()}
    for name, value in values.items():
        if name not in known:
            hint = closest(name, sorted(known))
            raise RequestError(
                f"--set {name}={value}: {', '.join(names)} has no parameter '{name}'; {hint}"
            )
    return [
        mechanism.with_params(
            {name: value for name, value in values.items() if name in mechanism.parameter_names()}
        )
        for mechanism in found
    ]
