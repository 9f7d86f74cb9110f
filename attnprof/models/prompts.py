"""Caches after long prompts, extrapolated from those that short prompts leave.

Recurrent layers go through a prompt in a loop, which a run on symbolic sizes would follow from the
first token to the last. Their state does not grow, and the cache of attention grows by a row a
token: prompts at a few sizes show that, and one at others confirms it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnprof.trace.request.target import Sizes
from attnprof.trace.run.limits import TooLongError

#: Tokens of the shortest prompt: convolutions over a few tokens keep shorter ones whole.
_LEAST_TOKENS = 8
#: The longest prompt: so many times the asked one, and at least so many tokens.
_AS_LONG, _SHORTEST = 2, 256


class NotGrowingError(Exception):
    """Raised if a cache does not grow by the same for each token."""


class Growth:
    """What prompts leave in the cache, as a function of the numbers of sequences and tokens.

    ``build`` makes the model, of which ``prompt`` runs one, at sizes by name; ``lengths`` are the
    names that count tokens.
    """

    def __init__(
        self, build: Callable[[], Any], prompt: Callable[[Any, Sizes], Any], lengths: Sequence[str]
    ) -> None:
        self._build, self._prompt, self._lengths = build, prompt, lengths
        self._known: tuple[Sizes, Sizes, list[Any]] | None = None
        self._fails = False

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Return the cache at symbolic sizes; None if a prompt itself is to be run there.

        That is if it takes as many operations at every length, does not run without values, or
        leaves a cache that grows in another way, as windows do.
        """
        import torch

        if self._fails or not any(isinstance(size, torch.SymInt) for size in sizes.values()):
            return None
        usual = {name: getattr(size, "node", None) for name, size in sizes.items()}
        hints = {n: sizes[n] if node is None else int(node.hint) for n, node in usual.items()}
        try:
            least, most, kept = self._known_caches(hints)
        except TooLongError:  # there is no time for other prompts, either
            raise
        except Exception:  # noqa: BLE001 - on tensors without values, models may raise anything
            self._fails = True
            return None
        for name in self._lengths:
            if not least[name] <= sizes[name] <= most[name]:  # a condition of the formulas
                return None
        return _extrapolated(kept, _GrowingNumber(least, most, sizes), {})

    def _known_caches(self, hints: Sizes) -> tuple[Sizes, Sizes, list[Any]]:
        """Return the least sizes, the largest ones, and the caches that prompts leave.

        These are at the least sizes, with one more of each in turn, and at the largest.
        """
        least = {name: _LEAST_TOKENS if name in self._lengths else 2 for name in hints}
        if self._known is None or any(hints[n] > self._known[1][n] for n in self._lengths):
            most = {n: max(_AS_LONG * hints[n], _SHORTEST) for n in self._lengths}
            most = {name: most.get(name, 5) for name in hints}
            self._known = least, most, list(self._prompts(least, most))
            _extrapolated(self._known[2], _GrowingNumber(least, most, least), {})
        return self._known

    def _prompts(self, least: Sizes, most: Sizes) -> Iterator[Any]:
        import torch

        from attnprof.models.wrappers import Unrecorded
        from attnprof.trace.run.remembered import Remembering
        from attnprof.trace.run.worlds import outside_fake

        def ran(sizes: Sizes) -> tuple[Any, int]:
            with remembering, Unrecorded() as mode:
                return self._prompt(model, sizes), mode.operations

        remembering = Remembering()
        with outside_fake(), torch.device("meta"):
            model = self._build().eval()
            (first, operations), (last, more) = ran(least), ran(most)
            if operations == more:
                raise NotGrowingError("it is as many operations for every length")
            yield first
            for name, size in least.items():
                yield ran({**least, name: size + 1})[0]
            yield last


class _GrowingNumber:
    """A number that grows linearly with each size, from prompts to any sizes."""

    def __init__(self, least: Sizes, most: Sizes, sizes: Mapping[str, Any]) -> None:
        self._least, self._most, self._sizes = least, most, sizes

    def __call__(self, numbers: Sequence[int]) -> Any:
        first, *nexts, last = numbers
        slopes = [(name, after - first) for name, after in zip(self._least, nexts, strict=True)]

        def at(sizes: Mapping[str, Any]) -> Any:
            return first + sum(k * (sizes[n] - self._least[n]) for n, k in slopes if k)

        if at(self._most) != last:
            raise NotGrowingError(f"{first} becomes {last}")
        return at(self._sizes)


def _extrapolated(values: Sequence[Any], line: _GrowingNumber, seen: dict[int, Any]) -> Any:
    """Return a value at other sizes, from the same value (of any type) after each prompt."""
    import torch

    one = result = values[0]
    if id(one) in seen or all(other is one for other in values):
        result = seen.get(id(one), one)
    elif isinstance(one, torch.Tensor):
        shapes = zip(*(x.shape for x in values), strict=True)
        result = torch.empty([line(numbers) for numbers in shapes], dtype=one.dtype)
    elif isinstance(one, list | tuple):
        made = [_extrapolated(parts, line, seen) for parts in zip(*values, strict=True)]
        result = made if isinstance(one, list) else tuple(made)
    elif isinstance(one, dict):
        result = {name: _extrapolated([x[name] for x in values], line, seen) for name in one}
    elif isinstance(one, int) and not isinstance(one, bool):
        result = line(values)
    elif hasattr(one, "__dict__") and not isinstance(one, type):
        result = seen[id(one)] = copy.copy(one)
        vars(result).update(_extrapolated([vars(x) for x in values], line, seen))
    return result
