"""Repairs read from source: from the line at which code fails, and from its constructor."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attnprof.trace.request import signatures
from attnprof.trace.request.given import Repair, shown
from attnprof.trace.request.messages import lines_where
from attnprof.trace.request.target import Expression, Input
from attnprof.trace.request.usual import (
    CHANNELS,
    CONTEXTS,
    LAYOUTS,
    context_widths,
    input_text,
)

#: A size of a tensor that is compared with a name.
_SIZE_OF = re.compile(r"\b(\w+)\.(?:shape\[|size\()(\d)[\])] *[!=]= *(?:self\.)?(\w+)")
#: A flag that a condition reads.
_FLAG_READ = re.compile(r"\bif .*?\bself\.(?:config\.)?(\w+)")


def sized(
    error: Exception, subject: Any, given: Mapping[str, Any], floats: Iterable[Input], width: str
) -> Iterator[Repair]:
    """Yield inputs with one more size that the failing line compares: ``x.shape[1] == n``."""
    values = {n: x.default for n, x in signatures.parameters_of(subject, "").items()} | {**given}
    names = {item.name for item in floats}
    for name, place, what in _SIZE_OF.findall(lines_where(error)):
        size = values.get(what)
        if name not in names or type(size) not in (int, Expression):
            continue
        for layout in (one for rank in (4, 3, 2) for one in LAYOUTS[rank]):
            dims = layout.format(w=width).split(", ")
            if dims[0] == "B" and int(place) < len(dims):
                dims.insert(int(place), shown(size))
                yield Repair(inputs={name: ", ".join(dims)})


def unflagged(error: Exception, subject: Any, given: Mapping[str, Any]) -> Iterator[Repair]:
    """Yield the opposite value of a flag that a condition just before the failing line reads."""
    taken = signatures.parameters_of(subject, "")
    for name in _FLAG_READ.findall(lines_where(error, before=3)):
        default = taken[name].default if name in taken and name not in given else 0
        if default is None or isinstance(default, bool):
            yield Repair({name: not default if default is not None else False})


def of_channels(text: str, subject: Any, floats: list[Input]) -> Iterator[Repair]:
    """Yield images, or tokens, with as many channels as the constructor has by default."""
    if not re.search(r"AssertionError|axis|axes|normalized_shape|mat1", text):
        return
    taken = signatures.parameters_of(subject, "")
    many = [taken[name].default for name in CHANNELS if name in taken]
    for count in (x for x in many if type(x) is int and x):
        for layout in ("B, H, W, {c}", "B, {c}, H, W", "B, N, {c}", "B, M, H, W, {c}"):
            yield from (Repair(inputs={x.name: layout.format(c=count)}) for x in floats[:1])


def context_text(name: str, usual: str, subject: Any, given: Mapping[str, Any]) -> str:
    """Return an input for another source (tokens, or a vector), as wide as the constructor says."""
    taken = signatures.parameters_of(subject, "")
    numbers = {n: given.get(n, x.default) for n, x in taken.items()}
    numbers = {n: x for n, x in numbers.items() if type(x) is int}
    prefixed = [n for n in numbers if n.startswith((name, name.removesuffix("s")))]
    others = context_widths(numbers) if name in CONTEXTS else []
    for width in [*(numbers[n] for n in prefixed), *others][:1]:
        if usual[:2] == "B,":
            return re.sub(r"[^,]+$", f" {width}", usual)
        return usual or f"B, {width}"
    return usual


def of_sides(
    name: str, text: str, taken: Iterable[str], inputs: Mapping[str, Input]
) -> dict[str, str]:
    """Return an image's other side if height or width is an input, with H*W tokens to match."""
    if text not in ("=H", "=W"):
        return {}
    side = {"=H": "=W", "=W": "=H"}[text]
    other = [n for n in taken if n != name and input_text(n, "", "") == side]
    bodies = {n: item.spelled.partition(": ")[2] for n, item in inputs.items()}
    first = [n for n, body in bodies.items() if re.match(r"B, N\b", body)][:1]
    tokens = {n: re.sub(r"\bN\b", "H*W", bodies[n]) for n in first}
    return dict.fromkeys(other[:1], side) | tokens


def with_class(inputs: Iterable[Input], width: str) -> Iterator[Repair]:
    """Yield inputs with one token more than an image has: that of the class."""
    for item in inputs:
        if tokens := re.search(r"B, (\w+\*\w+), ", item.spelled):
            yield Repair(inputs={item.name: f"B, {tokens[1]} + 1, {width}"})


#: Factors by which parts of a model are wider or narrower than the model.
_WIDTH_FACTORS = (2, 3, 4, 8)


def in_widths(number: int, old: str, value: Any) -> list[str]:
    """Return texts for a number: a multiple or part of ``old`` (``2*h*d``), then the number.

    ``value`` is what ``old``, the width, is at the sizes of the run; a length ("N") has no parts.
    """
    if old == "N":
        return [str(number)]
    texts = [f"{times}*{old}" for times in _WIDTH_FACTORS if number == times * value]
    texts += [f"{old}/{times}" for times in _WIDTH_FACTORS if number * times == value]
    return [*texts, str(number)]


def resized(bodies: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """Return the texts of inputs with the size ``old`` replaced by ``new``."""
    whole = rf"(?<![\w*]){re.escape(old)}(?![\w*/])"
    return {name: re.sub(whole, new, body) for name, body in bodies.items()}
