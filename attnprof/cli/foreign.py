"""Whether a command runs somebody's code, which may end the process it is run in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Commands that measure in processes of their own, and leave nothing behind however they end.
ALWAYS = ("sweep", "baseline", "check")
#: Parameters that name what is run.
TARGETS = ("attention", "target", "mechanism_a", "mechanism_b", "mechanisms", "pair", "table")


def foreign_code(command: str, given: Mapping[str, Any]) -> str | None:
    """What to call the code that is run, by its name if it has one; None where it is all ours.

    ``given`` are the command's parameters: only mechanisms and targets can be somebody's code.
    """
    names: list[str] = []
    for parameter in TARGETS if command != "reproduce" else ():
        value = given.get(parameter) or ()
        texts = [str(value)] if not isinstance(value, (list, tuple)) else value
        names += [name.strip() for text in texts for name in text.split(",")]
    if command == "verify-formula" and given.get("table"):
        names.append(given["formula"] or "")  # the target, where a table has the formulas
    places = [name for name in names if ":" in name]
    if places:
        return ", ".join(dict.fromkeys(places))
    if command in ALWAYS:
        return f"attnprof {command}"
    from attnprof import registry

    return f"attnprof {command}" if set(names) - {"", *registry.names()} else None
