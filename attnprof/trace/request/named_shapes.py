"""Shapes of inputs that fit to those that a message names."""

import re
from collections.abc import Iterable, Iterator

from attnprof.trace.request.given import Repair
from attnprof.trace.request.target import EVEN, Input, at
from attnprof.trace.request.texts import as_size

#: Sizes at which a target is seen to fail.
FAILING = {**EVEN, "B": 3}
_BROADCAST = re.compile(r"torch\.Size\(\[([\d, ]+)\]\).* broadcastable to \[([\d, ]+)\]")


def wider(text: str, inputs: Iterable[Input], width: str) -> Iterator[Repair]:
    """Twice or three times the width, where the message asks for that."""
    wide = at(as_size(width), EVEN)
    for times in (2, 3):
        if not re.search(rf"\b{wide}\b.*\b{times * wide}\b", text):
            continue
        for item in inputs:
            dims = [dim.text for dim in item.dims]
            if dims[-1:] == [width]:
                yield Repair(inputs={item.name: ", ".join([*dims[:-1], f"{times}*{width}"])})


def beside(text: str, inputs: Iterable[Input]) -> Iterator[Repair]:
    """The sizes of a tensor that one of the inputs does not fit to, as of tables for each width."""
    told = _BROADCAST.search(text)
    if not told:
        return
    have, wanted = ([int(size) for size in shape.split(", ")] for shape in told.groups())
    for item in inputs if len(have) < len(wanted) else ():
        sizes = {name: FAILING.get(name, 16) for dim in item.dims for name in dim.names}
        spelled = {at(dim, sizes): dim.text for dim in item.dims}
        if [*spelled] == have:
            others = [spelled.get(size, str(size)) for size in wanted[1:]]
            yield Repair(inputs={item.name: ", ".join([item.dims[0].text, *others])})
