"""Caches that prompts leave, from which a token is decoded.

A run of a decoded token changes its cache, so each run needs a fresh one. Without values a prompt
is run once for its sizes, and every run gets a copy of the model and the cache that it left.

Recurrent layers go through a prompt in a loop, token by token, which takes a symbolic run too long.
So caches at symbolic sizes are extrapolated from those that short prompts leave: a recurrent state
does not grow, the cache of attention grows by a row a token. One more prompt confirms it. Entry
point: :meth:`Prompts.after`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from attnprof.models.wrappers import Unrecorded
from attnprof.trace.request.decoding import extrapolated
from attnprof.trace.request.target import Sizes
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.remembered import Remembering
from attnprof.trace.run.worlds import emptied, has_values, on_meta

if TYPE_CHECKING:
    from attnprof.models.whole import WholeModel

#: Tokens of the shortest prompt: convolutions over a few tokens keep shorter ones whole.
_LEAST_TOKENS = 8
#: The longest prompt: so many times the asked one, and at least so many tokens.
_AS_LONG, _SHORTEST = 2, 256


class NotGrowingError(Exception):
    """Raised if a cache does not grow by the same for each token."""


class Prompts:
    """The prompts of a model, by the numbers of sequences and tokens."""

    def __init__(self, subject: "WholeModel") -> None:
        self.subject = subject
        self._lengths = [name for name in subject.target().symbols if name != "B"]
        self._left = dict[Any, Any]()
        self._sampled: tuple[Sizes, Sizes, list[Any]] | None = None
        self._fails = False

    def after(self, sizes: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Any]:
        """Return a model, its cache by name, and its encoder's rows, after a prompt."""
        if any(isinstance(size, torch.SymInt) for size in sizes.values()):
            if (grown := self._grown(sizes)) is not None:
                return self.subject.build().eval(), *grown
        elif not has_values():
            key = (*sizes.items(), torch.get_default_dtype())
            if key not in self._left:
                self._left[key] = self._after_on_meta(sizes)
            if self._left[key] is not None:
                return emptied(*self._left[key])  # type: ignore[no-any-return]
        model = self.subject.build().eval()
        with Unrecorded():
            return model, *self.subject.prompt(model, sizes)

    def _after_on_meta(self, sizes: Sizes) -> tuple[Any, ...] | None:
        """Return what a prompt leaves on meta tensors; None if the code needs values."""
        try:
            with on_meta():
                model = self.subject.build().eval()
                left, _ = self._run(model, sizes)
                return model, *left
        except TooLongError:
            raise
        except Exception:  # noqa: BLE001 - on tensors without values, models may raise anything
            return None

    def _run(self, model: Any, sizes: Sizes) -> tuple[Any, int]:
        """Return what a prompt leaves, and its number of operations."""
        with Remembering(), Unrecorded() as mode:
            return self.subject.prompt(model, sizes), mode.operations

    def _grown(self, sizes: Mapping[str, Any]) -> Any:
        """Return the cache at symbolic sizes; None if a prompt must be run at these sizes.

        It must if a prompt takes as many operations at every length, does not run without values,
        or leaves a cache that does not grow by the same for each token, as windows do.
        """
        if self._fails:
            return None
        usual = {name: getattr(size, "node", None) for name, size in sizes.items()}
        hints = {n: sizes[n] if node is None else int(node.hint) for n, node in usual.items()}
        try:
            least, most, kept = self._sampled_caches(hints)
        except TooLongError:  # there is no time for other prompts, either
            raise
        except Exception:  # noqa: BLE001 - on tensors without values, models may raise anything
            self._fails = True
            return None
        for name in self._lengths:
            if not least[name] <= sizes[name] <= most[name]:  # a condition of the formulas
                return None
        return _extrapolated(kept, _line(least, most, sizes))

    def _sampled_caches(self, hints: Sizes) -> tuple[Sizes, Sizes, list[Any]]:
        """Return the least sizes, the largest ones, and the caches that prompts leave.

        The prompts are of the least sizes, of one more of each size in turn, and of the largest.
        """
        least = {name: _LEAST_TOKENS if name in self._lengths else 2 for name in hints}
        if self._sampled is None or any(hints[n] > self._sampled[1][n] for n in self._lengths):
            most = {n: max(_AS_LONG * hints[n], _SHORTEST) for n in self._lengths}
            most = {name: most.get(name, 5) for name in hints}
            self._sampled = least, most, self._sample(least, most)
            _extrapolated(self._sampled[2], _line(least, most, least))
        return self._sampled

    def _sample(self, least: Sizes, most: Sizes) -> list[Any]:
        with on_meta():
            model = self.subject.build().eval()
            (first, operations), (last, more) = (self._run(model, x) for x in (least, most))
            if operations == more:
                raise NotGrowingError("it is as many operations for every length")
            nexts = [self._run(model, {**least, x: size + 1})[0] for x, size in least.items()]
            return [first, *nexts, last]


def _line(least: Sizes, most: Sizes, sizes: Mapping[str, Any]) -> Callable[[Sequence[int]], Any]:
    """Return a function that extrapolates a number linearly from its values after each prompt."""

    def extended(numbers: Sequence[int]) -> Any:
        first, *nexts, last = numbers
        slopes = [(name, after - first) for name, after in zip(least, nexts, strict=True)]

        def at(sizes: Mapping[str, Any]) -> Any:
            return first + sum(k * (sizes[n] - least[n]) for n, k in slopes if k)

        if at(most) != last:
            raise NotGrowingError(f"{first} becomes {last}")
        return at(sizes)

    return extended


def _extrapolated(kept: Sequence[Any], line: Callable[[Sequence[int]], Any]) -> Any:
    def tensor(values: Sequence[Any]) -> Any:
        shapes = zip(*(x.shape for x in values), strict=True)
        return torch.empty([line(numbers) for numbers in shapes], dtype=values[0].dtype)

    return extrapolated(kept, line, tensor)
