"""The axis of a crossover: the length, or another size or parameter at a given length."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from attnprof.algebra.polynomials import divisors
from attnprof.costs import Number
from attnprof.crossovers.lengths import EVERY, LONGEST, PER_DOUBLING, Lengths
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.workload import Workload

#: Sizes of a workload by the name of their flag.
SIZES = {
    "seq": "seq_len", "d": "head_dim", "heads": "num_heads", "batch": "batch_size",
    "kv_heads": "num_kv_heads",
}  # fmt: skip
#: Without a typed range, values up to here (or to the length, if that is more) are tried where
#: costs round sizes; the first so many one by one.
USUAL, ONE_BY_ONE = 4096, 256


def parameters(side: Any) -> list[str]:
    """Return a mechanism's parameters that are whole numbers; [] for a user's module."""
    if not isinstance(side, Mechanism):
        return []
    return [item.name for item in fields(side) if item.type in (int, int | None)]


@dataclass(frozen=True)
class CrossoverAxis:
    """What varies: a size by the name of its flag, or a mechanism's parameter; and its range.

    ``last`` is the last value (None: no end). With ``d_model`` heads share a model of that width.
    """

    name: str = "seq"
    first: int = 1
    last: int | None = None
    d_model: int | None = None

    @property
    def given(self) -> str:
        """The size that is given for a row: the head width over lengths, else the length."""
        return "head_dim" if self.name == "seq" else "seq_len"

    @property
    def letter(self) -> str:
        """The letter of the given size in closed forms."""
        return "d" if self.name == "seq" else "N"

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter of a mechanism."""
        return self.name not in SIZES

    @property
    def known(self) -> Lengths:
        """The values of the range, whether both sides take them or not."""
        if (self.first, self.last) == (1, None):
            return EVERY
        return Lengths(lambda value: self.first <= value <= (self.last or LONGEST))

    def check(self, sides: Sequence[Any]) -> None:
        """Raise :class:`RequestError` for neither a size nor a parameter of a side."""
        if self.d_model is not None and self.name != "heads":
            raise RequestError(f"d_model {self.d_model} is for numbers of heads alone: over heads")
        takes = [name for side in sides for name in parameters(side)]
        if self.is_parameter and self.name not in takes:
            possible = list(dict.fromkeys([*SIZES, *takes]))
            names = " and ".join(side.name for side in sides)
            raise RequestError(
                f"--over {self.name}: no size, and no whole number that {names} take; "
                f"{closest(self.name, possible)}{_all_of(self.name, possible)}"
            )

    def placed(
        self, sides: Sequence[Any], workload: Workload, value: Number, given: Number
    ) -> tuple[list[Any], Workload]:
        """Return both sides and their workload at a value, with the size that is given."""
        if self.name == "seq":
            return list(sides), workload.with_(seq_len=value, head_dim=given)
        if self.is_parameter:
            changed = [
                replace(side, **{self.name: value}) if self.name in parameters(side) else side
                for side in sides
            ]
            return changed, workload.with_(seq_len=given)
        more: dict[str, Number] = {SIZES[self.name]: value}
        if self.d_model is not None:
            if isinstance(value, int) and self.d_model % value:
                raise RequestError(f"{value} heads do not divide d_model {self.d_model}")
            more["head_dim"] = self.d_model // value
        return list(sides), workload.with_(seq_len=given, **more)

    def without(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters without the one that varies."""
        return {name: value for name, value in params.items() if name != self.name}

    def values(self, workload: Workload, given: int) -> list[int]:
        """Return values to try where both sides round sizes: first all, then 8 a doubling.

        Divisors of the length and of the widths are among them: such parameters divide those.
        """
        last = self.last or max(USUAL, given)
        start, stop = ONE_BY_ONE.bit_length() - 1, LONGEST.bit_length() - 1
        steps = range(start * PER_DOUBLING, stop * PER_DOUBLING + 1)
        doublings = (round(2 ** (step / PER_DOUBLING)) for step in steps)
        sizes = (given, self.d_model or 1, workload.num_heads, workload.head_dim)
        divide = (place for size in sizes if isinstance(size, int) for place in divisors(size))
        candidates = {*range(self.first, self.first + ONE_BY_ONE), *doublings, *divide, last}
        return sorted(value for value in candidates if self.first <= value <= last)

    def after(self, place: int, workload: Workload, given: int) -> Iterator[int]:
        """Yield values to try from one on, first a multiple that kernels fill up."""
        step = 8 if place >= 64 else 4 if place >= 16 else 1
        last = self.last or max(USUAL, given)
        usual = [-(-place // step) * step] if self.name == "d" else []
        later = [value for value in self.values(workload, given) if value >= place]
        yield from (v for v in dict.fromkeys([*usual, place, *later]) if v <= last)


def _all_of(name: str, possible: Sequence[str]) -> str:
    """Return all possible names, if a message has only the nearest ones."""
    text = f"possible: {', '.join(possible)}"
    return "" if closest(name, list(possible)) == text else f" {text}"


#: The length, as in the papers.
SEQ = CrossoverAxis()


# -- curves of figures -----------------------------------------------------------------
def curve(
    axis: CrossoverAxis, given: int, points: Mapping[int, Any], **what: Any
) -> dict[str, Any]:
    """Return costs at values of an axis, as a figure takes them (``seq_len`` over lengths)."""
    x = "seq_len" if axis.name == "seq" else "at"
    return {**what, axis.given: given, x: list(points), "value": list(points.values())}
