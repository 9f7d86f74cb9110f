"""001's tables, made again: sizes and gains computed, memory beside what C alone takes."""

from collections.abc import Callable
from functools import partial

from attnprof.papers.neural_attention import checks
from attnprof.papers.neural_attention.models import MILLION, name_of, vision_model
from attnprof.papers.regenerated import Row, tables_of

SIZE = "model size (M)"


def vision_millions(dataset: str, row: Row) -> float:
    """Size of a vision model of Table 3 or 4."""
    return vision_model(name_of(row), dataset) / MILLION


def bounds(task: str) -> dict[str, Callable[[Row], float]]:
    """The least memory, in 16 bits, and time of a task's rows."""
    return {
        "memory (GB/batch)": lambda row: checks.least_memory(task, name_of(row)) / 2,
        "inference speed (ms/sample)": lambda row: checks.least_time(task, name_of(row)),
    }


OURS: dict[str, dict[str, Callable[[Row], float]]] = {
    "1": {SIZE: lambda row: checks.millions(name_of(row))},
    "2": {"improvement (%)": lambda row: checks.reduction(name_of(row))},
    "3": {SIZE: partial(vision_millions, "cifar10")},
    "4": {SIZE: partial(vision_millions, "cifar100")},
    "5": {"improvement (points)": lambda row: checks.gain(row["dataset"])},
    "6": bounds("nlp"),
    "7": bounds("vision"),
    "8": bounds("vision"),
}
TABLES = tables_of("001", OURS)
