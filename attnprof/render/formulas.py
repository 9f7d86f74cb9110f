"""Formulas on the terminal: a text that is broken between terms."""

import re
from collections.abc import Iterator
from itertools import accumulate, chain

from rich.cells import cell_len
from rich.text import Text


class FormulaText(Text):
    """A formula: where it takes several lines, each begins with a term or an argument."""

    def folded(self, width: int) -> Text:
        """The same in lines of this width."""
        lines = (_terms(line, width) for line in self.plain.split("\n"))
        return Text("\n".join(chain.from_iterable(lines)))

    @classmethod
    def brief(cls, formula: str, most: int) -> "FormulaText":
        """The first of its terms, as many as fit in so many characters; ``…`` for the rest."""
        first, *rest = _terms(formula, most)
        return cls(f"{first[:most]} …" if rest or len(first) > most else first)


def _terms(line: str, width: int) -> Iterator[str]:
    """A line broken before a sign or after a comma: within the fewest brackets, then latest.

    A term that is longer is broken between its factors.
    """
    indent = " " * (len(line) - len(re.sub(r"^(Max\((?=.*,$))?\s*", "", line)))
    while cell_len(line) > width > len(indent):
        depths = list(accumulate((sign in "([{") - (sign in ")]}") for sign in line))
        ends = [found.end() for found in re.finditer(r" (?=[+-] )|, ", line[: width + 1])]
        ends = [end for end in ends if end > len(indent) + width // 4]
        factors = [found.end() for found in re.finditer(r"(?<!\*)\*(?!\*)|[/(]", line[:width])]
        last = factors[-1] if factors else width
        end = min(ends, key=lambda at: (depths[at - 1], -at), default=last)
        yield line[:end].rstrip()
        line = indent + line[end:]
    yield line
