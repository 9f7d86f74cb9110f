"""The weights that a decoding step has to read: shared ones, and those of experts that it meets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from attnprof.trace.solve.columns import unnumbered


@dataclass(frozen=True)
class HeldWeights:
    """Numbers of weights of a module: those every token meets, and those of routed experts."""

    shared: int = 0
    routed: int = 0


def is_routed(name: str, weights: Any, experts: int) -> bool:
    """Return whether a parameter is of experts that see some tokens each, by name or by slices."""
    sliced = weights.ndim == 3 and weights.shape[0] == experts > 1
    return ".experts." in f".{name}" or sliced


def held_weights(model: Any, experts: int) -> dict[str, HeldWeights]:
    """Return the weights of a model by the name of the module that reads them.

    Tables of embeddings, of which a token reads a row, are left out, unless a head shares them.
    """
    from torch.nn import Embedding

    seen, held = set[int](), dict[str, HeldWeights]()
    for name, module in model.named_modules():
        if isinstance(module, Embedding):
            continue
        sums = [0, 0]
        for parameter, weights in module.named_parameters(recurse=False):
            if id(weights) not in seen:
                sums[is_routed(f"{name}.{parameter}", weights, experts)] += weights.numel()
            seen.add(id(weights))
        if any(sums):
            held[name] = HeldWeights(*sums)
    return held


def weights_met(
    held: Mapping[str, HeldWeights], modules: Iterable[str], experts: int, chosen: int, tokens: int
) -> int:
    """Return how many weights ``tokens`` meet which run through ``modules``.

    Of routed experts those that tokens meet on average if each chooses ``chosen`` of ``experts``
    evenly: E (1 - (1 - k/E)^tokens), rounded up.
    """
    ran = {unnumbered(name.removeprefix("module").removeprefix(".")) for name in modules}
    read = [one for name, one in held.items() if _is_read(unnumbered(name), ran)]
    met = 1 - (1 - Fraction(chosen, experts)) ** tokens
    return sum(one.shared for one in read) + ceil(sum(one.routed for one in read) * met)


def _is_read(name: str, ran: set[str]) -> bool:
    """Return whether a module ran, or the one that holds it, which may use its weights itself."""
    return name in ran or name.rpartition(".")[0] in ran
