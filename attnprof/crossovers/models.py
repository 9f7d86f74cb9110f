"""Two mechanisms in all layers of a model, compared by crossovers like two modules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.sources import subject_of
from attnprof.models.swap import swaps_of
from attnprof.trace.request.target import Target
from attnprof.workload import Workload

#: The name of the model's own attention.
ORIGINAL = "original"


def rivals(
    source: str, names: Sequence[str], values: Mapping[str, Any], phase: str, batch_size: int
) -> tuple[Target, Target, Workload]:
    """Return a phase of a model with one and with the other mechanism, and the workload.

    A name is one that ``--swap`` takes, or ``original`` for the model as it is; one name alone is
    compared with that. ``values`` are the mechanisms' parameters. Raises :class:`RequestError` if a
    mechanism does not fit.
    """
    both = [ORIGINAL, *names] if len(names) == 1 else list(names)
    if len(both) != 2 or both[0] == both[1]:
        raise RequestError(
            "--model compares two mechanisms in a model: type two names, or one to compare with "
            f"the {ORIGINAL}"
        )
    asked = [name for name in both if name != ORIGINAL]
    swaps = {name: [swap] for name, swap in zip(asked, swaps_of(asked, values), strict=True)}
    models = [subject_of(source, None, swaps.get(name, ())) for name in both]
    first, second = (
        replace(model.target(phase), name=name) for model, name in zip(models, both, strict=True)
    )
    model = models[0]
    if "N" not in first.symbols:
        raise RequestError(f"{source} takes inputs of one size: there is no length to compare by")
    workload = Workload(
        1, model.num_heads, model.head_dim, batch_size, phase=phase, dtype=model.dtype
    )
    return first, second, workload
