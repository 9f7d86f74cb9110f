"""A size along which the cost is a polynomial: in which class, over which range."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnprof.trace.sampling import telling_sizes


@dataclass
class Line:
    """What is known of one size: cost is a polynomial in it for low, low + stride, … up to high.

    ``nodes`` are sizes that fix the polynomial, the anchor's first; ``borders`` tell, of sizes at
    which a range may end, that the code takes another branch beyond. ``smooth``: what is held is a
    polynomial, too.
    """

    name: str
    nodes: list[int]
    step: int
    stride: int
    low: int
    high: int
    smooth: bool = True
    borders: dict[int, str] = field(default_factory=dict)

    def holds(self, size: int) -> bool:
        """Whether a size lies in the class and in the range."""
        return self.low <= size <= self.high and (size - self.nodes[0]) % self.stride == 0

    @property
    def conditions(self) -> list[str]:
        """The class in words, ``64 divides N - 37``, and where another branch is taken."""
        rest = self.nodes[0] % self.stride
        number = f"{self.name} - {rest}" if rest else self.name
        word = [f"{self.stride} divides {number}"] if self.stride > 1 else []
        ends = [self.borders[end] for end in (self.high, self.low) if end in self.borders]
        return [*word, *ends]

    @property
    def sizes(self) -> range:
        """All sizes of the class in the range."""
        return range(self.low, self.high + 1, self.stride)

    def telling(self, most: int) -> list[int]:
        """Sizes at which to try it, nearest to the anchor first."""
        return telling_sizes(self.sizes, self.nodes[0], most)

    def end_before(self, size: int) -> bool:
        """Leave out a size and those beyond; False where only the nodes would be left."""
        if size > self.nodes[0]:
            self.high = size - self.stride
        elif size < self.nodes[0]:
            self.low = size + self.stride
        return len(self.sizes) > len(self.nodes) + 1 and size != self.nodes[0]

    def halve(self) -> None:
        """A range half as wide around the anchor."""
        start = self.nodes[0]
        self.low = start - (start - self.low) // 2 // self.stride * self.stride
        self.high = start + (self.high - start) // 2 // self.stride * self.stride
