"""Search along one size: is the cost a polynomial in it, in which class of sizes, and how far.

Where consecutive sizes give no polynomial, sizes a stride apart may: code that works in blocks
or pads to a multiple. Where even those do not, a border lies between two branches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from attnprof.trace.events import Trace
from attnprof.trace.request.target import sizes_text
from attnprof.trace.solve.budget import NoFormulaError, Runs
from attnprof.trace.solve.columns import sheet
from attnprof.trace.solve.grid import MOST, degree
from attnprof.trace.solve.shapes import Line, telling_sizes

#: Strides tried for a length, and for other sizes.
_LONG, _SHORT = (64, 256, 960, 1024, 16, 4, 1), (1, 8, 60, 64)
#: Strides tried after the first that fits, for one on which peaks are polynomials, too.
_TRIES = 4
#: Sizes before a branch that have to confirm a polynomial, besides its nodes.
_MORE = 3
#: A range that ends at so many times its start is wide: no other class is looked for.
_WIDE = 1.9
#: Sizes at which a line is tried, at least and at most, operations of all those runs, and how often
#: its range is cut.
_CHECKS, _ALL_CHECKS, _CUTS = (3, 20), 800, 8
#: Operations after which no more strides are tried.
_A_LINE = 15_000


@dataclass
class Probe:
    """The search for lines through an anchor; ``known`` lines of other phases may hold, too."""

    runs: Runs
    anchor: Mapping[str, int]
    known: Mapping[str, Line] = field(default_factory=dict)

    def line(self, name: str) -> Line:
        """Return the line of one size; raise NoFormulaError if there is none."""
        if again := self._known_line(name):
            return again
        for thorough in (True, False):
            lines = list[Line]()
            for line in self._smooth_first(self._candidates(name, thorough=thorough)):
                self._refine(line)
                self._extend(line)
                self._settle(line)
                if line.borders and len(line.sizes) < len(line.nodes) + _MORE:
                    continue  # so few sizes between two branches fit by accident
                lines.append(line)
                if line.high >= _WIDE * line.low:
                    return line
            if lines:
                return max(lines, key=lambda line: len(line.sizes))
        around = self.anchor[name]
        raise NoFormulaError(f"the cost is no polynomial in {name} around {around}", name)

    def _smooth_first(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield lines on which peaks are polynomials, too, then the first of the others."""
        others, most = list[Line](), 2
        for line in lines:
            if line.smooth:
                most = 1
                yield line
            else:
                others.append(line)
        yield from others[:most]

    def _candidates(self, name: str, *, thorough: bool) -> Iterator[Line]:
        """Yield the lines of a few strides on which counts are polynomials."""
        candidates, before = 0, self.runs.left
        strides = _LONG if name == "N" or self.anchor[name] >= 64 else _SHORT
        for stride, sign in product(strides, (1, -1)):
            if candidates > _TRIES or before - self.runs.left > _A_LINE:
                return
            if ladder := self._ladder(name, sign * stride, thorough=thorough):
                nodes, smooth = ladder
                yield Line(name, nodes, sign * stride, stride, min(nodes), max(nodes), smooth)
            candidates += bool(candidates or ladder)

    def _known_line(self, name: str) -> Line | None:
        """Return the line that is known of another phase, with nodes for these phases, or None."""
        known = self.known.get(name)
        if known is None or known.nodes[0] != self.anchor[name]:
            return None
        if not (ladder := self._ladder(name, known.step, thorough=False)):
            return None
        line = replace(known, nodes=ladder[0], smooth=ladder[1], borders=dict(known.borders))
        ends = self.fits(line, [known.low, known.high])
        return line if ends and self.fits(line, self._checked_sizes(line), peaks=False) else None

    def _at(self, name: str, size: int) -> Trace | None:
        return self.runs.tried({**self.anchor, name: size}) if size > 0 else None

    def _ladder(self, name: str, step: int, *, thorough: bool) -> tuple[list[int], bool] | None:
        """Return nodes a step apart that fix the polynomial, and whether peaks are one; or None."""
        start = self.anchor[name]
        sizes, traces = list[int](), list[Trace]()
        for place in range(MOST + 2):
            trace = self._at(name, start + place * step)
            if trace is None or start + place * step < 2:
                return None
            sizes.append(start + place * step)
            traces.append(trace)
            fit = self._fit(sizes, traces) if place >= 2 else None
            if fit is None:
                continue
            nodes = sizes[: fit[0] + 1]
            if thorough:  # sizes well above and below are to fit as well
                stride = abs(step)
                above = start + stride * max(len(sizes) + 1, start // stride)
                below = start - stride * ((start - max(2, start // 2)) // stride)
                far = {size: self._at(name, size) for size in {above, below} - set(sizes)}
                ran = {size: trace for size, trace in far.items() if trace is not None}
                fit = self._fit([*sizes, *ran], [*traces, *ran.values()])
            return (nodes, fit[1]) if fit and fit[0] < len(nodes) else None
        return None

    def _fit(
        self, sizes: Sequence[int], traces: Sequence[Trace], *, peaks: bool = True
    ) -> tuple[int, bool] | None:
        """Return the highest degree of columns, and whether ``peaks`` are polynomials; or None."""
        columns = sheet(traces, self.runs.phases)
        highest, smooth = 0, True
        for column in set(columns.counts()):
            of = degree(sizes, column)
            if of is None:
                return None
            highest = max(highest, of)
        for phase, held in columns.held.items() if peaks else ():
            degrees = {column: degree(sizes, column) for column in held}
            known = {column: of for column, of in degrees.items() if of is not None}
            # a moment that is no polynomial does not matter if it is never the peak
            smooth &= tuple(map(max, zip(*known, strict=True))) == columns.most[phase]
            highest = max(highest, *known.values(), 0)
        return highest, smooth

    # -- smaller strides, further ends ---------------------------------------------------
    def fits(self, line: Line, more: Sequence[int], *, peaks: bool = True) -> bool:
        """Return whether counts at more sizes lie on the polynomial, and peaks if they did so far.

        Sizes at which the code does not run do not lie on it.
        """
        beyond = range(1, 3 if len(line.nodes) == 1 else 2)  # more than an accident
        confirming = [line.nodes[-1] + line.step * k for k in beyond]
        sizes = list(dict.fromkeys([*line.nodes, *confirming, *more]))
        traces = [trace for size in sizes if (trace := self._at(line.name, size)) is not None]
        if len(traces) < len(sizes):
            return False
        fit = self._fit(sizes, traces, peaks=peaks)
        smooth = line.smooth and peaks
        return fit is not None and fit[0] < len(line.nodes) and fit[1] >= smooth

    def _refine(self, line: Line) -> None:
        """Set the line's stride to the smallest on which the polynomial still holds."""
        start = line.nodes[0]
        room = max(2, start // 2)
        for stride in (n for n in range(1, line.stride) if line.stride % n == 0):
            near = [start + stride, start - stride, start + stride * (line.stride // stride - 1)]
            odd = [start + stride * k for k in (-3, 5, 11) if abs(stride * k) < room]
            if all(self.fits(line, [size]) for size in [*near, *odd] if size >= 2):
                line.stride = stride
                return

    def _extend(self, line: Line) -> None:
        """Extend a line to four times the anchor and down to the smallest size, or to borders."""
        start, stride = line.nodes[0], line.stride
        for ends in ((2, 4), (1 / 2, 1 / 4, 1 / 16, 1 / 128, 0)):
            for factor in ends:
                far = start + int((max(int(start * factor), 2) - start) / stride) * stride
                if line.low <= far <= line.high:
                    continue
                if self._at(line.name, far) is None:
                    break
                above = far > start
                if not self.fits(line, [far]):
                    good = self._border(line, line.high if above else line.low, far)
                    line.end_at(good, above=above)
                    break
                line.end_at(far, above=above)

    def _settle(self, line: Line) -> None:
        """Narrow the range of a line until sizes all over it fit, by one run each."""
        start = line.nodes[0]
        for _ in range(_CUTS):
            sizes = self._checked_sizes(line)
            if self.fits(line, sizes, peaks=False):
                return
            off = (size for size in sizes if not self.fits(line, [size], peaks=False))
            bad = next(off, start)
            line.end_at(self._border(line, start, bad, peaks=False), above=bad >= start)
        line.low = line.high = start

    def _checked_sizes(self, line: Line) -> list[int]:
        """Return sizes of a line to run: fewer if a run takes long."""
        longest = self._at(line.name, line.high)
        calls = len(longest.calls) if longest else _ALL_CHECKS
        most = max(_CHECKS[0], min(_CHECKS[1], _ALL_CHECKS // max(calls, 1)))
        return telling_sizes(line.sizes, line.nodes[0], most)

    def _border(self, line: Line, good: int, bad: int, *, peaks: bool = True) -> int:
        """Return the last size that fits before a ``bad`` one, a branch if the code runs there."""
        while abs(bad - good) > line.stride:
            steps = (bad - good) // line.stride
            middle = good + (steps // 2 if steps > 1 else -(-steps // 2)) * line.stride
            if self.fits(line, [middle], peaks=peaks):
                good = middle
            else:
                bad = middle
        if self._at(line.name, bad) is not None:
            others = sizes_text({k: v for k, v in self.anchor.items() if k != line.name})
            line.borders[good] = (
                f"the code branches between {line.name} = {min(good, bad)} and {max(good, bad)}"
                + (f" (at {others})" if others else "")
            )
        return good
