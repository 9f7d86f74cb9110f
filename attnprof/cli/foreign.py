"""Whether a command line has somebody's code run, which may end the process it is run in."""

from __future__ import annotations

import re

#: Commands that measure in processes of their own, and leave nothing behind however they end.
ALWAYS = ("sweep", "baseline", "check")
#: Commands that run what they are given the name of, where that is not a mechanism of ours.
NAMED = (
    "list", "cost", "compare", "crossover", "heads", "heatmap", "derive", "verify-formula",
    "profile",
)  # fmt: skip
_PLAIN = re.compile(r"-.*|[0-9.,:x+*]*")


def foreign_code(command: str | None, arguments: list[str]) -> str | None:
    """What to call the code that is run, by its name if it has one; None where there is none."""
    if command not in (*ALWAYS, *NAMED) or {"-h", "--help", "--version"} & set(arguments):
        return None
    before = ["", *arguments]
    words = [
        word.partition("=")[2] or word
        for option, word in zip(before, arguments, strict=False)
        if word != command and option not in ("--input", "--arg", "--output", "-o")
    ]
    names = [name for word in words if not _PLAIN.fullmatch(word) for name in word.split(",")]
    places = [name for name in names if re.fullmatch(r"[^\s=]+(\.py)?:[^\s:]+", name)]
    if places:
        return ", ".join(dict.fromkeys(places))
    if command in ALWAYS or set(names) - _shipped():
        return f"attnprof {command}"
    return None


def _shipped() -> set[str]:
    from attnprof import registry

    return set(registry.names())
