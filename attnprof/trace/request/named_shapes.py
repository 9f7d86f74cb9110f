"""Repairs of input shapes from the shapes and widths that an error message names."""

import re
from collections.abc import Iterable, Iterator

from attnprof.trace.request.given import Repair
from attnprof.trace.request.target import EVEN, Input, at
from attnprof.trace.request.texts import as_size

#: Sizes of the run that fails, to read its message by.
FAILING = {**EVEN, "B": 3}
_BROADCAST = re.compile(r"torch\.Size\(\[([\d, ]+)\]\).* broadcastable to \[([\d, ]+)\]")


def wider(text: str, inputs: Iterable[Input], width: str) -> Iterator[Repair]:
    """Yield inputs two or three times as wide, if the message names both widths."""
    wide = at(as_size(width), EVEN)
    for times in (2, 3):
        if not re.search(rf"\b{wide}\b.*\b{times * wide}\b", text):
            continue
        for item in inputs:
            dims = [dim.text for dim in item.dims]
            if dims[-1:] == [width]:
                yield Repair(inputs={item.name: ", ".join([*dims[:-1], f"{times}*{width}"])})


def beside(text: str, inputs: Iterable[Input]) -> Iterator[Repair]:
    """Yield an input with the sizes of a larger tensor that it does not broadcast to."""
    match = _BROADCAST.search(text)
    if not match:
        return
    have, wanted = ([int(size) for size in shape.split(", ")] for shape in match.groups())
    for item in inputs if len(have) < len(wanted) else ():
        sizes = {name: FAILING.get(name, 16) for dim in item.dims for name in dim.names}
        spelled = {at(dim, sizes): dim.text for dim in item.dims}
        if [*spelled] == have:
            others = [spelled.get(size, str(size)) for size in wanted[1:]]
            yield Repair(inputs={item.name: ", ".join([item.dims[0].text, *others])})
