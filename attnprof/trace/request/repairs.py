"""Other guesses for code that fails, from its error message and the line at which it fails."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from attnprof.trace.request import lines, signatures
from attnprof.trace.request.configurations import all_parameters
from attnprof.trace.request.given import Repair, Request, shown
from attnprof.trace.request.messages import channels, ranks, source_of, words_where
from attnprof.trace.request.named_shapes import beside, wider
from attnprof.trace.request.target import EVEN, Input, Target, at, base_of
from attnprof.trace.request.texts import Named, as_size
from attnprof.trace.request.usual import (
    HEADS,
    INPUTS,
    LAYOUTS,
    MASKS,
    POSITIONS,
    REQUIRED,
    SQUARES,
    input_text,
    plain_value,
)

#: Messages about None, or one number where several are needed: a repair may go on from there.
UNSET = re.compile(r"None|'(int|bool)' object is not")
#: Sizes as numbers, for code that takes no symbols.
_PLAIN_SIZES = {"B": 2, "N": 256, "h": 8, "d": 64}


#: Inputs that may be a mask or bias if None fails; a cache is none.
_MASKS_OF = {
    name
    for name, usual in INPUTS.items()
    if usual == "None" and not re.search("past|cache|state", name)
}


@dataclass
class Failed:
    """A target that fails with an error, and the repairs that the error suggests.

    ``change`` led to it from the target of the ``first`` guesses.
    """

    subject: Any
    request: Request
    target: Target
    error: Exception
    first: Target
    change: Repair = field(default_factory=Repair)

    def repairs(self) -> Iterator[Repair]:
        """Yield changes of the guesses, likelier ones first."""
        text = f"{type(self.error).__name__}: {self.error}"
        yield from self._parts()
        yield from lines.unflagged(self.error, self.subject, self._given)
        yield from self._named(text)
        yield from self._defaults(text)
        yield from self._pairs(text)
        yield from self._missing(text)
        yield from self._classes()
        yield from self._unset()
        yield from wider(text, self.guessed_inputs.values(), self.width)
        yield from self._layouts(text)
        for item in self.guessed_inputs.values():
            if item.dtype == "int64":
                yield Repair(inputs={item.name: f"B, N, {self.width}"})
        heads = [name for name in self.guessed_inputs if name.lower() in HEADS]
        for one in ("B, h, N, d", "B, N, h, d") if len(heads) > 1 else ():
            yield Repair(inputs=dict.fromkeys(heads, one))
        yield from lines.with_class(self.guessed_inputs.values(), self.width)
        yield from self._numbers(text)
        yield from self._fixed(text)
        yield from self._twos()

    @property
    def _given(self) -> dict[str, Any]:
        """Arguments that were typed, guessed, or changed."""
        return {**self.guessed_args, **self.request.given, **self.change.args}

    @property
    def guessed_args(self) -> dict[str, str]:
        """Arguments that were guessed, as texts."""
        texts = [text for text, flag in self.request.guessed.items() if flag == "--arg"]
        return dict(text.split("=", 1) for text in texts)

    @property
    def guessed_inputs(self) -> dict[str, Input]:
        """Inputs that were guessed."""
        given = {*map(base_of, self.request.inputs)}
        return {x.name: x for x in self.target.inputs if base_of(x.name) not in given}

    @property
    def width(self) -> str:
        """The model width."""
        dims = [item.dims for item in self.first.inputs if len(item.dims) == 3]
        return dims[0][-1].text if dims else "h*d"

    def _named(self, text: str) -> Iterator[Repair]:
        """Yield values for optional arguments that the message names as missing."""
        names = [n for n in re.findall(r"[`'](\w+)[`']", text) if n not in self.request.given]
        taken = signatures.parameters_of(self.subject, "")
        known = {name: REQUIRED.get(name.lower()) for name in names}
        plain = {n: plain_value(n, taken[n]) for n in names if n in taken and not known[n]}
        values = {name: as_size(size) for name, size in known.items() if size}
        values |= {name: value[0] for name, value in plain.items() if value}
        if values:
            yield Repair(values)
        yield from (Repair({name: value}) for name, value in values.items() if len(values) > 1)

    def _defaults(self, text: str) -> Iterator[Repair]:
        """Yield values for None, lists for numbers, and default numbers of layers."""
        line = words_where(self.error)
        taken = {
            name: (last, item)
            for name, item in all_parameters(self.subject).items()
            if name not in self.request.given and (last := name.rpartition(".")[2])
        }
        if "NoneType" in text or "AssertionError" in text:
            none = {n: x for n, x in taken.items() if x[1].default is None}
            sizes = {n: as_size(REQUIRED[x.lower()]) for n, (x, _) in none.items()
                     if x.lower() in REQUIRED}  # fmt: skip
            plain = {n: plain_value(x, item) for n, (x, item) in none.items() if x in line}
            for some in (sizes, {n: x[0] for n, x in plain.items() if x and x[0] is not None}):
                if some:
                    yield Repair(some)
        if "'int' object is not" in text:
            for name, (last, item) in taken.items():
                if last in line and isinstance(item.default, int):
                    yield Repair({name: [min(item.default, 64)] * 2})
        if "Validation" in text:  # of a configuration that takes some fields as they are alone
            numbers = {
                n: taken[n][1].default
                for n in self.guessed_args
                if n in taken and type(taken[n][1].default) is int
            }
            for name in sorted(numbers, key=lambda name: str(numbers[name]) not in text):
                yield Repair({name: numbers[name]})
        layers = [n for n, size in self.guessed_args.items() if size == "2" and n in taken]
        if usual := {name: taken[name][1].default for name in layers}:
            yield Repair(usual)

    def _parts(self) -> Iterator[Repair]:
        """Yield entries for inputs that the code reads as dicts, parts for those it unpacks."""
        code = source_of(getattr(self.subject, "forward", self.subject))
        for name in self.guessed_inputs:
            keys = dict.fromkeys(re.findall(rf"\b{name}(?:\[|\.get\()['\"](\w+)['\"]", code))
            usual = {key: input_text(key, self.width, "d") or f"B, N, {self.width}" for key in keys}
            for mask in MASKS if "None" in usual.values() else MASKS[:1] if keys else ():
                made = {key: mask if one == "None" else one for key, one in usual.items()}
                yield Repair(inputs={f"{name}.{key}": one for key, one in made.items()})
            if apart := re.search(rf"^ *((?:\w+, *)+\w+) = {name}$", code, re.MULTILINE):
                many = apart[1].count(",") + 1
                yield Repair(inputs={name: ", ".join([f"(B, N, {self.width})"] * many)})

    def _pairs(self, text: str) -> Iterator[Repair]:
        """Yield pairs for guessed numbers, numbers for pairs, or numbers that divide."""
        numbers = {n: int(value) for n, value in self.guessed_args.items() if value.isdecimal()}
        pair = re.search(r"'int' object (is not|has no)|object of type 'int'|iterable|unpack", text)
        if len(numbers) > 1 and pair:
            yield Repair({name: [value, value] for name, value in numbers.items()})
        for name, value in numbers.items() if pair else ():
            yield Repair({name: (value, value)})
        for name, text_of in self.guessed_args.items() if "'tuple'" in text else ():
            if sides := re.fullmatch(r"\((\d+), \d+\)", text_of):
                yield Repair({name: int(sides[1])})
        if re.search("divisible|multiple|divide", text):
            lengths = [name for name, size in self.guessed_args.items() if size == "N"]
            yield from (Repair({name: 8}) for name in lengths)
            for name, value in numbers.items():
                yield Repair({name: 16 if value != 16 else 8})

    def _missing(self, text: str) -> Iterator[Repair]:
        """Yield tensors for inputs that are None, those that the failing line names first."""
        taken = signatures.parameters_of(getattr(self.subject, "forward", self.subject), "")
        named = set(re.findall(r"\w+", text)) & {*taken} - {"input", "mask", "x"}
        if not (named or UNSET.search(text) or "missing" in text):
            return
        given = {*map(base_of, self.request.inputs)}
        made = {base_of(item.name) for item in self.target.inputs if not item.literal}
        open_ones = [name for name in taken if name not in given | made and name != "self"]
        line = words_where(self.error) | named
        for name in sorted(open_ones, key=lambda name: name not in line):
            usual = input_text(name, self.width, "d")
            if not usual and name in named and taken[name].default is None:
                usual = f"B, N, {self.width}"
            usual = lines.context_text(name, usual, self.subject, self._given)
            for one in (usual,) if usual not in ("None", "") else ():
                beside_it = lines.of_sides(name, one, taken, self.guessed_inputs)
                yield Repair(inputs=beside_it | {name: one})
            if name in line and (name in _MASKS_OF or "mask" in name):
                yield from (Repair(inputs={name: one}) for one in MASKS)

    def _classes(self) -> Iterator[Repair]:
        """Yield BatchNorm2d for a guessed LayerNorm."""
        for name, value in self.guessed_args.items():
            if value == "torch.nn:LayerNorm":
                yield Repair({name: Named("torch.nn:BatchNorm2d")})

    def _unset(self) -> Iterator[Repair]:
        """Yield (B, N, width) for optional tensors whose names say nothing."""
        taken = signatures.parameters_of(getattr(self.subject, "forward", self.subject), "")
        given = {*map(base_of, (*self.request.inputs, *self.guessed_inputs))}
        for name, item in taken.items():
            if item.default is None and name not in given and "Tensor" in str(item.annotation):
                usual = input_text(name, self.width, "d")
                if not usual or usual == f"B, N, {self.width}":
                    yield Repair(inputs={name: f"B, N, {self.width}"})

    def _layouts(self, text: str) -> Iterator[Repair]:
        """Yield other layouts: as many dimensions as asked for, integers, other masks."""
        inputs = self.guessed_inputs
        line = words_where(self.error)
        floats = [item for item in inputs.values() if item.dims and not item.dtype]
        floats.sort(key=lambda item: item.name not in line)
        if re.search(r"Long|integer|IntTensor|int64", text):
            for item in floats:
                yield Repair(inputs={item.name: "B, N int64"})
        yield from lines.sized(self.error, self.subject, self._given, floats, self.width)
        yield from self._pictures(floats)
        of_images = channels(text)
        if of_images and of_images not in self._seen:
            sides = "M, H, W" if floats and len(floats[0].dims) == 5 else "H, W"
            yield from (Repair(inputs={x.name: f"B, {of_images}, {sides}"}) for x in floats[:1])
        yield from beside(text, floats)
        same = len(floats) > 1 and len({item.dims for item in floats}) == 1
        together = [(floats, len(floats[0].dims))] if same else []
        for some, many in together + [([item], len(item.dims)) for item in floats[:3]]:
            for rank in ranks(text, many):
                whole = "N" in map(shown, self.change.args.values()) and rank == 4
                for one in (*SQUARES[: 2 * whole], *LAYOUTS.get(rank, ())):
                    layout = one.format(w=self.width)
                    yield Repair(inputs=dict.fromkeys((item.name for item in some), layout))
        yield from lines.of_channels(text, self.subject, floats)
        pairs = {base_of(name) for name in inputs if "." in name}
        for name in pairs & {n for n, usual in INPUTS.items() if usual.startswith("(")}:
            yield from (Repair(inputs={name: one}) for one in POSITIONS)
        for item in inputs.values():
            if item.name in _MASKS_OF and re.search("size|shape|dimension|mask", text):
                yield from (Repair(inputs={item.name: one}) for one in MASKS)

    def _pictures(self, floats: list[Input]) -> Iterator[Repair]:
        """Yield inputs with as many tokens or pixels as an argument's default says."""
        for name, item in signatures.parameters_of(self.subject, "").items():
            usual = plain_value("resolution", item)
            guess = usual if name in self.guessed_args else item.default
            side = self.change.args.get(name, self.request.given.get(name, guess))
            while isinstance(side, tuple) and side:
                side = side[0]
            if floats and isinstance(side, int) and plain_value(name, item) == usual:
                for one in ("B, {n}*{n}, {w}", "B, {w}, {n}, {n}", "B, {n}, {n}, {w}"):
                    yield Repair(inputs={floats[0].name: one.format(w=self.width, n=side)})

    @property
    def _sizes(self) -> dict[str, int]:
        """The sizes of the run that fails."""
        return {name: EVEN.get(name, 16) for name in (*self.target.symbols, *"BNhd")}

    @property
    def _seen(self) -> set[Any]:
        """The sizes of inputs in the run that fails, as numbers."""
        return {at(dim, self._sizes) for item in self.target.inputs for dim in item.dims}

    def _numbers(self, text: str) -> Iterator[Repair]:
        """Yield inputs with a number of the message for the length or the width."""
        seen, width = self._seen, at(as_size(self.width), self._sizes)
        bodies = {name: item.spelled.partition(": ")[2]
                  for name, item in self.guessed_inputs.items() if not item.literal}  # fmt: skip
        asked = [n for n in dict.fromkeys(map(int, re.findall(r"\d+", text))) if 4 < n < 5000]
        for number in [n for n in asked if n not in seen][:4]:
            for old in ("N", self.width):
                for new in lines.in_widths(number, old, width):
                    texts = lines.resized(bodies, old, new)
                    changed = [name for name, text in texts.items() if text != bodies[name]]
                    for name in changed[1:] if old != "N" else ():
                        yield Repair(inputs={name: texts[name]})
                    if texts:
                        yield Repair(inputs=texts)

    def _twos(self) -> Iterator[Repair]:
        """Yield 2 for arguments that are 1 by default, as scales: some code needs several."""
        line = words_where(self.error)
        ones = [
            name
            for name, item in signatures.parameters_of(self.subject, "").items()
            if item.default == 1 and type(item.default) is int and name not in self.request.given
        ]
        for name in sorted(ones, key=lambda name: name not in line):
            yield Repair({name: 2})

    def _fixed(self, text: str) -> Iterator[Repair]:
        """Yield numbers for all guessed arguments that are sizes."""
        sizes = {name: as_size(value) for name, value in self.guessed_args.items()
                 if re.fullmatch(r"[\w*]*[hdN]", value)}  # fmt: skip
        same = self.target.spelled_inputs == self.first.spelled_inputs  # others have the old width
        if sizes and same and "." not in "".join(sizes):
            yield Repair({name: at(size, _PLAIN_SIZES) for name, size in sizes.items()})
