"""Choose the mechanisms to compare, with several values of the parameters that tune them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from attnprof import registry
from attnprof.mechanism import Mechanism

#: Shares of a parameter's default that are tried.
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Candidate:
    """A mechanism with its parameters, and the name that was typed."""

    name: str
    mechanism: Mechanism


def candidates(
    names: Sequence[str], values: Mapping[str, Sequence[str]], seq_len: int, head_dim: int
) -> list[Candidate]:
    """Return every mechanism with every combination of the ``values`` it has a parameter for.

    A ``tuned`` parameter without values gets several: shares of its default, or of the head width
    if the default follows from sizes, up to ``seq_len``. A name that no mechanism has is an error.
    """
    registry.configured(names, {name: given[0] for name, given in values.items()})
    chosen_candidates: dict[Candidate, None] = {}
    for name in names:
        mechanism = registry.get(name)
        typed = {key: given for key, given in values.items() if key in mechanism.parameter_names()}
        for chosen in product(*typed.values()):
            base = mechanism.with_params(dict(zip(typed, chosen, strict=True)))
            tuned = [key for key in mechanism.tuned if key not in typed]
            for each in _tuned(base, tuned, seq_len, head_dim):
                chosen_candidates[Candidate(name, each)] = None
    return list(chosen_candidates)


def _tuned(base: Mechanism, names: Sequence[str], n: int, d: int) -> Iterator[Mechanism]:
    """Yield the mechanism with one tuned parameter at a time at several values."""
    if not names:
        yield base
    for name in names:
        default = base.params[name]
        if default is None:
            yield base
        for value in ladder(default or d, n, _min_value(base, name)):
            yield base.with_params({name: value})


def _min_value(mechanism: Mechanism, name: str) -> int:
    possible: Any = mechanism.allowed.get(name)
    return possible if isinstance(possible, int) else 1


def ladder(default: int, most: int, least: int = 1) -> list[int]:
    """Return whole shares of a default between ``least`` and ``most``, each once, ascending."""
    return sorted({max(least, min(most, round(share * default))) for share in SHARES})
