"""Costs of each submodule: FLOPs of its own and with those inside it, parameters, peak memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from attnprof.algebra.maxima import running_maximum
from attnprof.trace.events import Size, Trace, added, flops_of, grouped


@dataclass(frozen=True)
class Submodule:
    """The costs of a submodule, or of ``times`` alike ones together (``layers.0-11``).

    ``flops`` and ``parameters`` (numbers of entries) include the submodules inside;
    ``flops_itself`` does not. A backward operation belongs to the submodule whose forward operation
    it differentiates. ``peak_bytes`` is the most that is held at once of what the submodule made
    (results, what is saved for the backward pass, gradients), None if unknown. ``name`` is that of
    ``named_modules``, empty for the module itself.
    """

    name: str
    times: int
    flops: Any
    flops_itself: Any
    parameters: Any
    peak_bytes: Any
    inside: tuple["Submodule", ...] = field(default=(), repr=False)

    @property
    def last(self) -> str:
        """The last part of the name: ``proj`` of ``layers.0.proj``."""
        return self.name.rpartition(".")[2]

    def all(self) -> Iterator["Submodule"]:
        """Yield the submodule, then all inside it, in order."""
        yield self
        for part in self.inside:
            yield from part.all()


def submodules(trace: Trace, phase: str) -> list[Submodule]:
    """Return the costs of each submodule, ordered by ``named_modules``; alike siblings as one."""
    calls = grouped(trace.part(phase), lambda call: call.module)
    names = dict.fromkeys(above for x in ("", *trace.modules, *calls) for above in _path(x))
    inside: dict[str, list[str]] = {name: [] for name in names}
    for name in filter(None, names):
        inside[name.rpartition(".")[0]].append(name)
    shown = {name: name for name in names}

    def of(name: str) -> Submodule:
        parts = [of(part) for part in inside[name]]
        itself = flops_of(calls.get(name, []))
        flops = added([itself, *(part.flops for part in parts)])
        entries = added([trace.modules.get(name, 0), *(part.parameters for part in parts)])
        return Submodule(name, 1, flops, itself, entries, None, tuple(_alike_as_one(parts, shown)))

    ordered = list(of("").all())
    peaks = _peaks(trace, phase, shown)
    return [replace(part, peak_bytes=peaks.get(part.name)) for part in ordered]


def _path(name: str) -> list[str]:
    """Return a name after the names it is inside of: ``["", "layers", "layers.0"]``."""
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(len(parts) + 1)]


def _alike_as_one(parts: list[Submodule], shown: dict[str, str]) -> Iterator[Submodule]:
    """Yield siblings; neighbours with numbers and equal costs as one (``layers.0-11``).

    ``shown`` has each module's name in the result, and is changed to the joint one.
    """
    for (_, numbered), group in groupby(parts, lambda part: (_cost(part), part.last.isdigit())):
        same = list(group)
        if not numbered or len(same) == 1:
            yield from same
            continue
        together = f"{same[0].name}-{same[-1].last}"
        for part in same:
            for name, now in shown.items():
                if f"{now}.".startswith(f"{part.name}."):
                    shown[name] = together + now.removeprefix(part.name)
        yield _merged(same, together)


def _cost(part: Submodule) -> tuple[Any, ...]:
    inside = tuple((one.last, _cost(one)) for one in part.inside)
    return part.flops, part.flops_itself, part.parameters, part.times, inside


def _merged(same: list[Submodule], name: str) -> Submodule:
    inside = zip(*(part.inside for part in same), strict=True)
    sums = ("times", "flops", "flops_itself", "parameters")
    return replace(
        same[0],
        name=name,
        inside=tuple(_merged(list(one), f"{name}.{one[0].last}") for one in inside),
        **{name: added([getattr(part, name) for part in same]) for name in sums},
    )


def _peaks(trace: Trace, phase: str, shown: dict[str, str]) -> dict[str, Any]:
    """Return the most bytes that each submodule holds of what it made; {} without storages."""
    start: dict[str, list[Size]] = {name: [] for name in shown.values()}
    steps: dict[str, list[tuple[Size, Size, Size]]] = {name: [] for name in start}
    made: dict[int, tuple[list[str], Size]] = {}
    for call in trace.calls:
        names, before = _path(shown[call.module]), phase == "backward" and call.part == "forward"
        died = [(name, -size) for number in call.died for name in made[number][0]
                for size in made[number][1:]]  # fmt: skip
        made |= {number: (names, size) for number, size in call.born}
        for name, size in [*died, *((name, call.takes) for name in names if before)]:
            if before:
                start[name].append(size)
            else:
                steps[name].append((size, 0, 0))
        for name in names if not before else ():
            steps[name].append((call.takes, call.workspace, 0))
    known = {name: (added(start[name]), steps[name]) for name in start if steps[name]}
    return {name: running_maximum(*how) for name, how in known.items()} if made else {}
