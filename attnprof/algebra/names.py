"""Names of sizes: one spelling each, whichever of Unicode's forms is typed."""

from __future__ import annotations

import keyword
import unicodedata

#: Longer names are none; they would fill every message they stand in.
LONGEST_NAME = 100


def name_of(text: str) -> str:
    """The name in the form Python itself gives identifiers (``ℓ`` is ``l``), or "" for no name.

    Words of Python, ``None`` and ``True`` among them, are no names of sizes.
    """
    name = unicodedata.normalize("NFKC", text.strip())
    usable = name.isidentifier() and not keyword.iskeyword(name) and len(name) <= LONGEST_NAME
    return name if usable else ""
