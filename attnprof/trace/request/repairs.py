"""Other guesses for code that fails, from its error message and the line at which it fails.

:data:`REPAIRS` pairs what a message says with changes of the guesses that may help. :class:`Tries`
tries them until code runs: each failure suggests the next changes.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.request.failures import UNSET, Failed, Repair, in_widths, ranks
from attnprof.trace.request.guesses import Request
from attnprof.trace.request.signatures import (
    CHANNELS,
    CONTEXTS,
    HEADS,
    INPUTS,
    LAYOUTS,
    MASKS,
    REQUIRED,
    SQUARES,
    context_widths,
    input_text,
    plain_value,
)
from attnprof.trace.request.target import EVEN, Target, at, base_of
from attnprof.trace.request.texts import Named, as_size

#: Messages about one number where a pair is needed.
_NO_PAIR = r"'int' object (is not|has no)|object of type 'int'|iterable|unpack"
#: Sizes as numbers, for code that takes no symbols.
_PLAIN_SIZES = {"B": 2, "N": 256, "h": 8, "d": 64}
#: Layouts of pictures, tokens and films of ``{c}`` channels.
_PICTURES = ("B, H, W, {c}", "B, {c}, H, W", "B, N, {c}", "B, M, H, W, {c}")
#: Inputs that may be a mask or bias if None fails; a cache is none.
_MASKS_OF = {name for name, usual in INPUTS.items()
             if usual == "None" and not re.search("past|cache|state", name)}  # fmt: skip
#: Guesses changed at once, at most.
_MOST_CHANGES = 5
#: Processor seconds for all tries.
_SECONDS = 8.0
#: A request made ready to run.
Build = Callable[[Request], Target]


# -- arguments of the constructor ----------------------------------------------------------


def _named(failed: Failed) -> Iterator[Repair]:
    """Yield values for optional arguments that the message names as missing."""
    names = re.findall(r"[`'](\w+)[`']", failed.text)
    names = [name for name in names if name not in failed.request.args]
    parameters = failed.parameters
    sizes = {name: REQUIRED.get(name.lower()) for name in names}
    plain = {n: plain_value(n, parameters[n]) for n in names if n in parameters and not sizes[n]}
    values = {name: as_size(size) for name, size in sizes.items() if size}
    values |= {name: value[0] for name, value in plain.items() if value}
    yield Repair(values)
    yield from (Repair({name: value}) for name, value in values.items() if len(values) > 1)


def _values_for_none(failed: Failed) -> Iterator[Repair]:
    """Yield sizes, or usual values, for arguments that are None or -1 by default."""
    unset = {n: x for n, x in failed.left_out.items() if x.default in (None, -1)}
    none = {n: (x, n.rpartition(".")[2]) for n, x in unset.items()}
    sizes = {n: REQUIRED.get(last.lower()) for n, (_, last) in none.items()}
    yield Repair({name: as_size(size) for name, size in sizes.items() if size})
    usual = {n: plain_value(last, x) for n, (x, last) in none.items() if last in failed.line}
    yield Repair({n: value[0] for n, value in usual.items() if value and value[0] is not None})


def _lists(failed: Failed) -> Iterator[Repair]:
    """Yield lists of two for numbers by default that the failing line names."""
    for name, item in failed.left_out.items():
        if name.rpartition(".")[2] in failed.line and isinstance(item.default, int):
            yield Repair({name: [min(item.default, 64)] * 2})


def _numbers_of_configurations(failed: Failed) -> Iterator[Repair]:
    """Yield the defaults of guessed fields: a configuration may take no other values."""
    guessed = failed.request.guessed_args
    defaults = {n: x.default for n, x in failed.left_out.items() if n in guessed}
    numbers = {n: default for n, default in defaults.items() if type(default) is int}
    for name in sorted(numbers, key=lambda name: str(numbers[name]) not in failed.text):
        yield Repair({name: numbers[name]})


def _layers(failed: Failed) -> Iterator[Repair]:
    """Yield default numbers of layers."""
    layers = {name for name, size in failed.guessed_numbers.items() if size == 2}
    yield Repair({n: item.default for n, item in failed.left_out.items() if n in layers})


def _pairs(failed: Failed) -> Iterator[Repair]:
    """Yield pairs for guessed numbers."""
    numbers = failed.guessed_numbers
    if len(numbers) > 1:
        yield Repair({name: [value, value] for name, value in numbers.items()})
    for name, value in numbers.items():
        yield Repair({name: (value, value)})


def _one_of_pairs(failed: Failed) -> Iterator[Repair]:
    """Yield numbers for guessed pairs."""
    for name, value in failed.request.guessed_args.items():
        if isinstance(value, tuple):
            yield Repair({name: value[0]})


def _divisors(failed: Failed) -> Iterator[Repair]:
    """Yield other numbers, that divide lengths or sides."""
    lengths = [name for name, size in failed.request.guessed_args.items() if str(size) == "N"]
    yield from (Repair({name: 8}) for name in lengths)
    for name, value in failed.guessed_numbers.items():
        yield Repair({name: 16 if value != 16 else 8})


def _batch_norms(failed: Failed) -> Iterator[Repair]:
    """Yield BatchNorm2d for a guessed LayerNorm."""
    for name, value in failed.request.guessed_args.items():
        if str(value) == "torch.nn:LayerNorm":
            yield Repair({name: Named("torch.nn:BatchNorm2d")})


def _plain_sizes(failed: Failed) -> Iterator[Repair]:
    """Yield numbers for all guessed arguments that are sizes."""
    sizes = {name: value for name, value in failed.request.guessed_args.items()
             if re.fullmatch(r"[\w*]*[hdN]", str(value))}  # fmt: skip
    same = failed.target.spelled_inputs == failed.first.spelled_inputs  # others have the old width
    if sizes and same and "." not in "".join(sizes):
        yield Repair({name: at(size, _PLAIN_SIZES) for name, size in sizes.items()})


def _twos(failed: Failed) -> Iterator[Repair]:
    """Yield 2 for arguments that are 1 by default, as scales: some code needs several."""
    typed = failed.request.args
    ones = [name for name, item in failed.parameters.items()
            if item.default == 1 and type(item.default) is int and name not in typed]  # fmt: skip
    for name in sorted(ones, key=lambda name: name not in failed.line):
        yield Repair({name: 2})


# -- inputs of the call ----------------------------------------------------------------------


def _missing(failed: Failed) -> Iterator[Repair]:
    """Yield tensors for inputs that are None; inputs that the failing line names come first."""
    inputs = failed.called_with
    named = set(re.findall(r"\w+", failed.text)) & {*inputs} - {"input", "mask", "x"}
    if not (named or UNSET.search(failed.text) or "missing" in failed.text):
        return
    typed = {*map(base_of, failed.request.inputs)}
    guessed = {base_of(item.name) for item in failed.target.inputs if not item.literal}
    open_ones = [name for name in inputs if name not in typed | guessed and name != "self"]
    line = failed.line | named
    for name in sorted(open_ones, key=lambda name: name not in line):
        usual = input_text(name, failed.width, "d")
        if not usual and name in named and inputs[name].default is None:
            usual = f"B, N, {failed.width}"
        usual = _of_another_width(failed, name, usual)
        if usual not in ("None", ""):
            yield Repair(inputs={name: usual})
        if name in line and (name in _MASKS_OF or "mask" in name):
            yield from (Repair(inputs={name: one}) for one in MASKS)


def _unnamed(failed: Failed) -> Iterator[Repair]:
    """Yield (B, N, width) for optional tensors whose names say nothing."""
    inputs = failed.called_with
    typed = {*map(base_of, (*failed.request.inputs, *failed.guessed_inputs))}
    for name, item in inputs.items():
        if item.default is None and name not in typed and "Tensor" in str(item.annotation):
            usual = input_text(name, failed.width, "d")
            if not usual or usual == f"B, N, {failed.width}":
                yield Repair(inputs={name: f"B, N, {failed.width}"})


def _wider(failed: Failed) -> Iterator[Repair]:
    """Yield inputs two or three times as wide, if the message names both widths."""
    wide = at(as_size(failed.width), EVEN)
    for times in (2, 3) if failed.symbols else ():
        if re.search(rf"\b{wide}\b.*\b{times * wide}\b", failed.text):
            for item in failed.guessed_inputs.values():
                if item.text.endswith(f", {failed.width}"):
                    start = item.text.removesuffix(failed.width)
                    yield Repair(inputs={item.name: f"{start}{times}*{failed.width}"})


def _of_another_width(failed: Failed, name: str, usual: str) -> str:
    """Return the text of an input, as wide as an argument says that belongs to it by its name."""
    values = {**failed.request.guessed_args, **failed.request.args, **failed.change.args}
    numbers = {n: values.get(n, x.default) for n, x in failed.parameters.items()}
    numbers = {n: x for n, x in numbers.items() if type(x) is int}
    widths = [x for n, x in numbers.items() if n.startswith((name, name.removesuffix("s")))]
    widths += context_widths(numbers) if name in CONTEXTS else []
    if widths and usual[:2] == "B,":
        return re.sub(r"[^,]+$", f" {widths[0]}", usual)
    return usual or (f"B, {widths[0]}" if widths else "")


def _pictures(failed: Failed) -> Iterator[Repair]:
    """Yield inputs with as many tokens or pixels as an argument's default says."""
    for name, item in failed.parameters.items():
        usual = plain_value("resolution", item)
        guess = usual if name in failed.request.guessed_args else item.default
        side = failed.change.args.get(name, failed.request.args.get(name, guess))
        while isinstance(side, tuple) and side:
            side = side[0]
        if failed.floats and isinstance(side, int) and plain_value(name, item) == usual:
            for one in ("B, {n}*{n}, {w}", "B, {w}, {n}, {n}", "B, {n}, {n}, {w}"):
                yield Repair(inputs={failed.floats[0].name: one.format(w=failed.width, n=side)})


def _channels_said(failed: Failed) -> Iterator[Repair]:
    """Yield images with as many channels as the message says."""
    many, floats = re.search(r"to have (\d+) channels", failed.text), failed.floats
    if many and int(many[1]) not in failed.input_sizes and floats:
        sides = "M, H, W" if len(floats[0].dims) == 5 else "H, W"
        yield Repair(inputs={floats[0].name: f"B, {many[1]}, {sides}"})


def _ids(failed: Failed) -> Iterator[Repair]:
    """Yield token ids for numbers of a guess."""
    yield from (Repair(inputs={item.name: "B, N int64"}) for item in failed.floats)


def _no_ids(failed: Failed) -> Iterator[Repair]:
    """Yield numbers of the model's width for token ids of a guess, as ``tokens`` may be either."""
    for item in failed.guessed_inputs.values():
        if item.dtype == "int64":
            yield Repair(inputs={item.name: f"B, N, {failed.width}"})


def _layouts(failed: Failed) -> Iterator[Repair]:
    """Yield other layouts, of as many dimensions as the message asks for."""
    floats = failed.floats
    same = len(floats) > 1 and len({item.dims for item in floats}) == 1
    together = [(floats, len(floats[0].dims))] if same else []
    for some, many in together + [([item], len(item.dims)) for item in floats[:3]]:
        for rank in ranks(failed.text, many):
            whole = "N" in map(str, failed.change.args.values()) and rank == 4
            layouts = [*SQUARES[: 2 * whole], *LAYOUTS.get(rank, ())]
            if len(some) > 1 and all(item.name.lower() in HEADS for item in some):
                layouts.sort(key=lambda layout: "h, " not in layout)
            for one in layouts:
                layout = one.format(w=failed.width)
                yield Repair(inputs=dict.fromkeys((item.name for item in some), layout))


def _squares(failed: Failed) -> Iterator[Repair]:
    """Yield maps of pairs of tokens."""
    for item in failed.floats:
        yield from (Repair(inputs={item.name: one.format(w=failed.width)}) for one in SQUARES[::-1])


def _channels_by_default(failed: Failed) -> Iterator[Repair]:
    """Yield images, or tokens, with as many channels as the constructor has by default."""
    many = [failed.parameters[name].default for name in CHANNELS if name in failed.parameters]
    for count in (x for x in many if type(x) is int and x):
        for layout in _PICTURES if failed.floats else ():
            yield Repair(inputs={failed.floats[0].name: layout.format(c=count)})


def _heads(failed: Failed) -> Iterator[Repair]:
    """Yield queries, keys and values that are split into heads."""
    heads = [name for name in failed.guessed_inputs if name.lower() in HEADS]
    for one in ("B, h, N, d", "B, N, h, d") if len(heads) > 1 else ():
        yield Repair(inputs=dict.fromkeys(heads, one))


def _with_class(failed: Failed) -> Iterator[Repair]:
    """Yield inputs with one token more than an image has: that of the class."""
    for item in failed.guessed_inputs.values():
        if tokens := re.search(r"B, (\w+\*\w+), ", item.text):
            yield Repair(inputs={item.name: f"B, {tokens[1]} + 1, {failed.width}"})


def _numbers_said(failed: Failed) -> Iterator[Repair]:
    """Yield inputs with a number of the message for the length or the width."""
    inputs = failed.guessed_inputs.items()
    bodies = {name: item.text for name, item in inputs if not item.literal}
    width, input_sizes = at(as_size(failed.width), failed.sizes), failed.input_sizes
    numbers = dict.fromkeys(map(int, re.findall(r"\d+", failed.text)))
    for number in [n for n in numbers if 4 < n < 5000 and n not in input_sizes][:4]:
        of_width = in_widths(number, failed.width, width) if failed.symbols else [str(number)]
        for old, news in ("N", [str(number)]), (failed.width, of_width):
            whole = rf"(?<![\w*]){re.escape(old)}(?![\w*/])"
            for new in news:
                texts = {name: re.sub(whole, new, body) for name, body in bodies.items()}
                changed = [name for name, text in texts.items() if text != bodies[name]]
                for name in changed[1:] if old != "N" else ():
                    yield Repair(inputs={name: texts[name]})
                if texts:
                    yield Repair(inputs=texts)


#: What an error says, as a pattern, and the changes of guesses that may help; likelier ones first.
REPAIRS: tuple[tuple[str, Callable[[Failed], Iterator[Repair]]], ...] = (
    (r"[`'](\w+)[`']", _named),
    ("NoneType|AssertionError|negative dimension", _values_for_none),
    ("'int' object is not", _lists),
    ("Validation", _numbers_of_configurations),
    ("", _layers),
    (_NO_PAIR, _pairs),
    ("'tuple'", _one_of_pairs),
    ("divisible|multiple|divide", _divisors),
    ("", _missing),
    ("", _batch_norms),
    ("", _unnamed),
    (r"\d", _wider),
    ("Long|integer|IntTensor|int64", _ids),
    ("", _pictures),
    ("channels", _channels_said),
    ("symmetr|square", _squares),
    ("", _layouts),
    ("AssertionError|axis|axes|normalized_shape|mat1", _channels_by_default),
    ("", _no_ids),
    ("", _heads),
    ("", _with_class),
    (r"\d", _numbers_said),
    ("", _plain_sizes),
    ("", _twos),
)


def repairs_of(failed: Failed) -> Iterator[Repair]:
    """Yield changes of the guesses, likelier ones first."""
    for pattern, proposed in REPAIRS:
        if re.search(pattern, failed.text):
            yield from filter(len, proposed(failed))  # without empty ones


@dataclass
class Tries:
    """Changes of a request's guesses, tried until one target does not fail; ``changes`` has them.

    ``fails`` returns what a target raises, or None. There are at most ``most`` tries.
    """

    build: Build
    request: Request
    subject: Any
    fails: Callable[[Target], Exception | None]
    most: int
    changes: list[Repair] = field(default_factory=list)

    def until_one_runs(self, first: Target, error: Exception) -> Target | None:
        """Return the first target that runs, or None; ``first`` fails with ``error``.

        A change that fails has repairs of its own. They are tried next if it got further than the
        one before (it failed in the call instead of the constructor, or replaced a None), else
        last.
        """
        root = Failed(self.subject, self.request, first, error, first)
        waiting = [(root, repairs_of(root))]
        end = time.process_time() + _SECONDS
        while waiting and len(self.changes) < self.most and time.process_time() < end:
            failed, repairs = waiting[0]
            repair = next(repairs, None)
            if repair is None:
                waiting.pop(0)
            elif (change := failed.change | repair) not in self.changes:
                self.changes.append(change)
                more = self._run(change, first)
                if isinstance(more, Target):
                    return more
                if more and len(change) < _MOST_CHANGES:
                    place = 0 if more.is_further_than(failed) else len(waiting)
                    waiting.insert(place, (more, repairs_of(more)))
        return None

    def _run(self, change: Repair, first: Target) -> Target | Failed | None:
        """Return a change's target, or its failure if it does not run; None if none is built."""
        try:
            target = self.build(self.request.with_guesses(change.args, change.inputs))
        except AttnprofError:
            return None
        error = self.fails(target)
        if error is None:
            return target
        return Failed(self.subject, self.request, target, error, first, change)
