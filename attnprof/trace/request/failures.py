"""What failing code says: its failing lines, and sizes and dimensions in the error's message."""

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnprof.trace.request import signatures
from attnprof.trace.request.configurations import all_parameters
from attnprof.trace.request.guesses import Request
from attnprof.trace.request.target import EVEN, Input, Target, at, base_of, names_used
from attnprof.user_code import is_users

#: Messages about None, or one number where several are needed: a repair may go on from there.
UNSET = re.compile(r"None|'(int|bool)' object is not")
#: Factors by which parts of a model are wider or narrower than the model.
_WIDTH_FACTORS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Repair:
    """A change of guesses: values of arguments, texts of inputs."""

    args: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: "Repair") -> "Repair":
        return Repair({**self.args, **other.args}, {**self.inputs, **other.inputs})

    def __len__(self) -> int:
        return len(self.args) + len({*map(base_of, self.inputs)})

    def __str__(self) -> str:
        args = [f"--arg {name}={value}" for name, value in self.args.items()]
        return " ".join([*args, *(f'--input "{n}: {text}"' for n, text in self.inputs.items())])


@dataclass
class Failed:
    """A target that fails with an error; ``change`` led to it from the ``first`` guesses."""

    subject: Any
    request: Request
    target: Target
    error: Exception
    first: Target
    change: Repair = field(default_factory=Repair)

    @property
    def text(self) -> str:
        """The error's class and message."""
        return f"{type(self.error).__name__}: {self.error}"

    @property
    def line(self) -> set[str]:
        """The words of the last two lines of user code in the traceback."""
        frames = traceback.extract_tb(self.error.__traceback__)
        lines = [frame.line or "" for frame in frames if is_users(frame)]
        return set(re.findall(r"\w+", "\n".join(lines[-2:])))

    @property
    def parameters(self) -> signatures.Parameters:
        """Parameters of the constructor, or of the function."""
        return signatures.parameters_of(self.subject, "")

    @property
    def called_with(self) -> signatures.Parameters:
        """Parameters of the forward pass, or of the function."""
        return signatures.parameters_of(getattr(self.subject, "forward", self.subject), "")

    @property
    def left_out(self) -> signatures.Parameters:
        """Parameters of the constructor and its configuration that were not typed."""
        available = all_parameters(self.subject)
        return {name: item for name, item in available.items() if name not in self.request.args}

    @property
    def guessed_numbers(self) -> dict[str, int]:
        """Arguments that were guessed to be numbers."""
        return {n: value for n, value in self.request.guessed_args.items() if type(value) is int}

    @property
    def symbols(self) -> list[str]:
        """The symbols that arguments use; without any, the module's weights have fixed sizes."""
        return names_used({**self.request.guessed_args, **self.request.args, **self.change.args})

    @property
    def guessed_inputs(self) -> dict[str, Input]:
        """Inputs that were guessed."""
        typed = {*map(base_of, self.request.inputs)}
        return {x.name: x for x in self.target.inputs if base_of(x.name) not in typed}

    @property
    def floats(self) -> list[Input]:
        """Floating inputs that were guessed, those of the failing line first."""
        floats = [item for item in self.guessed_inputs.values() if item.dims and not item.dtype]
        return sorted(floats, key=lambda item: item.name not in self.line)

    @property
    def width(self) -> str:
        """The model width."""
        dims = [item.dims for item in self.first.inputs if len(item.dims) == 3]
        return dims[0][-1].text if dims else "h*d"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the run that fails."""
        return {name: EVEN.get(name, 16) for name in (*self.target.symbols, *"BNhd")}

    @property
    def input_sizes(self) -> set[Any]:
        """The sizes of inputs in the run that fails, as numbers."""
        return {at(dim, self.sizes) for item in self.target.inputs for dim in item.dims}

    @property
    def in_call(self) -> bool:
        """Whether it failed in a module's call: building the module had worked."""
        return any(f.name == "_call_impl" for f in traceback.extract_tb(self.error.__traceback__))

    def is_further_than(self, other: "Failed") -> bool:
        """Return whether it fails later: in the call, or where None was replaced."""
        ours, theirs = str(self.error), str(other.error)
        lacking = UNSET.search(theirs) or "NoneType" in ours
        return ours != theirs and bool(lacking or self.in_call > other.in_call)


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
    others = [rank for rank in dict.fromkeys(candidates) if rank != now]
    if re.search("mat1|einops|channels|input_size", text, re.IGNORECASE):
        others += [now, 4] if "channels" in text and now == 3 else [now]
    return others


def in_widths(number: int, text: str, width: int) -> list[str]:
    """Return texts for a number: a multiple or part of the width (``2*h*d``), then the number."""
    texts = [f"{times}*{text}" for times in _WIDTH_FACTORS if number == times * width]
    texts += [f"{text}/{times}" for times in _WIDTH_FACTORS if number * times == width]
    return [*texts, str(number)]
