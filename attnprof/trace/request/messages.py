"""Read what failing code says: its source, the failing line, sizes in the error's message."""

import inspect
import re
import sys
import traceback
from typing import Any

#: Factors by which parts of a model are wider or narrower than the model.
_WIDTH_FACTORS = (2, 3, 4, 8)


def source_of(function: Any) -> str:
    """Return the source of a function, class or file; "" for built-in ones."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def words_where(error: Exception) -> set[str]:
    """Return the words of the last two lines of user code in a traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    return set(re.findall(r"\w+", "\n".join(f.line or "" for f in frames[-2:])))


def in_call(error: Exception) -> bool:
    """Return whether an error was raised in a module's call: building the module had worked."""
    return any(f.name == "_call_impl" for f in traceback.extract_tb(error.__traceback__))


def ranks(text: str, now: int) -> list[int]:
    """Return numbers of dimensions that a message asks for; the tensor has ``now``."""
    candidates = [
        now + int(wanted) - int(got)
        for wanted, got in re.findall(r"\(expected (?:at least )?(\d+), got (\d+)\)", text)
    ]
    if many := re.search(r"too many values to unpack \(expected (\d+)\)", text):
        candidates += [int(many[1]), now - 1]
    candidates += map(int, re.findall(r"\b([1-6])-?[dD]\b", text))
    candidates += map(int, re.findall(r"expected (\d+) dims", text))
    candidates += [
        now + int(b) - int(a)
        for a, b in re.findall(r"input.dim\(\) = (\d) is not equal to len\(dims\) = (\d)", text)
    ]
    shapes = re.findall(r"\[(\d+(?:, \d+)+)\]", text)
    candidates += sorted({shape.count(",") + 1 for shape in shapes} - {now}, reverse=True)
    more = "index out of range|Dimension out of range|dimension specified as|number of dimensions"
    if re.search(more, text):
        candidates += [now + 1]
    return [rank for rank in dict.fromkeys(candidates) if rank != now] + (
        [now, 4][: 1 + ("channels" in text and now == 3)]
        if re.search("mat1|einops|channels|input_size", text, re.IGNORECASE)
        else []
    )


def compared(name: str, owner: Any) -> str:
    """Return the first text that a class's file compares an argument with: ``norm == "rms"``."""
    code = source_of(sys.modules.get(getattr(owner, "__module__", "")))
    pairs = re.findall(r"\b(\w+) == ['\"](\w+)['\"]", code)
    alike = (text for word, text in pairs if name == word or name.endswith(f"_{word}"))
    return next(alike, "")


def may_be_none(name: str, owner: Any) -> bool:
    """Return whether a constructor tests if an argument of this name is None."""
    code = source_of(getattr(owner, "__init__", owner))
    return bool(re.search(rf"(?<![\w.]){re.escape(name)} is (not )?None\b", code))


def in_widths(number: int, text: str, width: int) -> list[str]:
    """Return texts for a number: a multiple or part of the width (``2*h*d``), then the number."""
    texts = [f"{times}*{text}" for times in _WIDTH_FACTORS if number == times * width]
    texts += [f"{text}/{times}" for times in _WIDTH_FACTORS if number * times == width]
    return [*texts, str(number)]
