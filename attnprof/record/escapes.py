"""Escape names and texts from users' arguments, files and modules for each kind of output."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

#: Control characters as the pictures Unicode has of them, one for one. Characters that reorder
#: text, end lines unseen or have no form in UTF-8 become a replacement mark.
_PICTURES = {**{code: 0x2400 + code for code in range(32)}, 0x7F: 0x2421} | dict.fromkeys(
    [
        *range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
        0xFEFF, *range(0xD800, 0xE000), *range(0xE0000, 0xE0080),
    ],
    0xFFFD,
)  # fmt: skip
_LINES = {code: shown for code, shown in _PICTURES.items() if code not in (0x09, 0x0A)}


def visible(text: str, *, lines: bool = False) -> str:
    """Return text without control characters, which a terminal would obey: a sign replaces each.

    ``lines`` keeps line ends and tabs; otherwise the text stays on one line.
    """
    return text if text.isprintable() else text.translate(_LINES if lines else _PICTURES)


def readable(value: Any) -> Any:
    """Return a record, report or value with every text in it made :func:`visible`."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        members = {item.name: getattr(value, item.name) for item in fields(value)}
        texts = {name: x for name, x in members.items() if isinstance(x, (str, Mapping, Sequence))
                 and not (isinstance(x, str) and x.isprintable())}  # fmt: skip
        return replace(value, **{name: readable(x) for name, x in texts.items()})
    return value


def markdown_text(text: str) -> str:
    """Return text that Markdown shows verbatim: no emphasis, link, tag, entity or table cell.

    Signs without a meaning there are left: one star, one ``_`` before a name, any within it.
    """
    flat = re.sub(r"\s+", " ", visible(text, lines=True)).replace("\\", "\\\\")
    for pair in (r"\*", _EDGE):
        if len(re.findall(pair, flat)) > 1:
            flat = re.sub(pair, lambda match: f"\\{match[0]}", flat)
    return re.sub(r"([`{}\[\]<>|~#]|&(?=#?\w+;))", r"\\\1", flat)


#: An underscore that is not within a word, where it would begin or end emphasis.
_EDGE = r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"


def markdown_code(text: str) -> str:
    """Return a code span that is safe in a table; its fence is longer than any inside."""
    inner = re.sub(r"\s+", " ", visible(text, lines=True)).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", inner)), default=0) + 1)
    gap = " " if "`" in inner else ""
    return f"{fence}{gap}{inner}{gap}{fence}"


def csv_cell(text: str) -> str:
    """Return a text that spreadsheets do not take for a formula: it begins with an apostrophe.

    Numbers stay numbers, also negative ones.
    """
    shown = visible(text, lines=True)
    if shown[:1] not in ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠"):
        return shown
    try:
        float(shown)
    except ValueError:
        return f"'{shown}"
    return shown


def figure_text(text: str) -> str:
    """Return a label that matplotlib draws verbatim: dollars begin no formula, ``_`` hides none."""
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
