"""A hybrid: layers of several mechanisms in turn, ``gated-deltanet@3+gqa@1``."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from attnprof.costs import CostTable, Number, Stage, is_symbolic
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Abilities, Mechanism
from attnprof.workload import Workload, rows


@dataclass(frozen=True, kw_only=True)
class Hybrid(Mechanism):
    """A period of a hybrid's layers: ``counts[i]`` layers of ``parts[i]``, in this order.

    ``gated-deltanet@3+gqa@1`` is three layers of Gated DeltaNet and one of grouped attention. Rows
    between layers die when the next layer ends; in training they are saved for its backward pass.
    """

    parts: tuple[Mechanism, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def abilities(self) -> Abilities:  # type: ignore[override]
        """Abilities that all layers have; a stack of layers has no core."""
        names = [item.name for item in fields(Abilities)]
        can = {n: all(getattr(part.abilities, n) for part in self.parts) for n in names}
        needs_seq_len = any(part.abilities.needs_seq_len for part in self.parts)
        return Abilities(**can | {"attend": False, "needs_seq_len": needs_seq_len})

    @property
    def layers(self) -> list[Mechanism]:
        """The mechanism of each layer."""
        both = zip(self.parts, self.counts, strict=True)
        return [part for part, count in both for _ in range(count)]

    # -- parameters ----------------------------------------------------------------------
    def parameter_names(self) -> list[str]:  # type: ignore[override]
        """Return names of the parameters of any layer."""
        return list(dict.fromkeys(n for part in self.parts for n in part.parameter_names()))

    def with_params(self, params: dict[str, Any]) -> Self:
        """Return the hybrid with parameters set in all layers, or in one: ``gqa.gate``."""
        names = [*self.parameter_names(), *self.params]
        for name in params:
            if name not in names:
                raise RequestError(f"{self.name} has no parameter '{name}': {closest(name, names)}")

        def of_part(part: Mechanism) -> dict[str, Any]:
            spellings = {n: n for n in part.parameter_names()}
            spellings |= {f"{part.name}.{n}": n for n in spellings}
            return {spellings[n]: x for n, x in params.items() if n in spellings}

        return replace(self, parts=tuple(part.with_params(of_part(part)) for part in self.parts))

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of all layers, by names like ``gqa.bias``."""
        return {f"{part.name}.{n}": x for part in self.parts for n, x in part.params.items()}

    # -- sums ----------------------------------------------------------------------------
    def _sum(self, count_of: Any) -> Number:
        both = zip(self.parts, self.counts, strict=True)
        return sum(count * count_of(part) for part, count in both)

    def parameters(self, workload: Workload, scope: str = "layer") -> Number:
        """Return the parameters of all layers."""
        return self._sum(lambda part: part.parameters(workload, scope))

    def state_entries(self, workload: Workload) -> Number:
        """Return the state entries of all layers."""
        return self._sum(lambda part: part.state_entries(workload))

    def wide_entries(self, workload: Workload) -> Number:
        """Return the float32 state entries of all layers."""
        return self._sum(lambda part: part.wide_entries(workload))

    def whole_entries(self, workload: Workload) -> Number:
        """Return the whole numbers in the states of all layers."""
        return self._sum(lambda part: part.whole_entries(workload))

    def state_traffic(self, workload: Workload, scope: str = "layer") -> Number:
        """Return the state traffic of all layers."""
        return self._sum(lambda part: part.state_traffic(workload, scope))

    def check(self, workload: Workload, scope: str) -> None:
        """Raise :class:`RequestError` for a workload that one of the layers does not support."""
        for part in self.parts:
            part.check(workload, scope)

    def choice(self, workload: Workload) -> str:
        """Return the form that each layer's mechanism chooses."""
        return "; ".join(filter(None, (part.choice(workload) for part in self.parts)))

    # -- tables --------------------------------------------------------------------------
    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Return the stages of all layers in the order in which they run."""
        if is_symbolic(workload.seq_len, workload.head_dim):  # a peak of hundreds of terms
            raise RequestError(f"{self.name}: closed forms are those of its layers: ask for them")
        tables = [part.cost(workload, scope) for part in self.parts]
        w, trains = workload, workload.phase in ("train", "backward")
        between = w.batch_size * rows(w) * w.d_model * w.item_size if scope == "layer" else 0
        layers = list(self._in_order(tables))
        stages = list[Stage]()
        lent = self._lent(workload)
        for place, layer in enumerate(layers):
            forward = [stage for stage in layer if stage.part == "forward"]
            inputs = between if place else 0
            stages += _freeing(forward, 0 if trains else inputs + lent[place])
        for place, layer in reversed([*enumerate(layers)]):
            backward = [stage for stage in layer if stage.part != "forward"]
            # stages free their input's gradient, which lives on: the saved input dies in its place
            passed = between if place + 1 < len(layers) else 0  # the next layer's gradient
            stages += _freeing(backward, passed)
        notes = dict.fromkeys(note for table in tables for note in table.notes)
        each = list(zip(tables, self.counts, strict=True))
        return CostTable(
            tuple(stages), sum(table.parameters * count for table, count in each),
            sum(table.state_entries * count for table, count in each),
            sum(table.live_before * count for table, count in each), tuple(notes),
        )  # fmt: skip

    def _lent(self, w: Workload) -> list[Number]:
        """Return for each layer the bytes of lent places that it frees, as the last to reuse them.

        In training autograd saves the places, so they count to the end.
        """
        freed: list[Number] = [0] * len(self.layers)
        lent_bytes: Number = 0
        for place, part in enumerate(self.layers):
            lent_bytes = lent_bytes if part.continues else part.lent_bytes(w)
            if not any(after.continues for after in self.layers[place + 1 : place + 2]):
                freed[place] = lent_bytes
        return freed

    def definition(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Return the operations of all layers."""
        tables = [part.definition(workload, scope) for part in self.parts]
        stages = [stage for layer in self._in_order(tables) for stage in layer]
        return CostTable(tuple(stages), self.parameters(workload, scope))

    def _in_order(self, tables: list[CostTable]) -> Iterator[list[Stage]]:
        """Yield each layer's stages, which have its number and mechanism in their names."""
        table_of = dict(zip(map(id, self.parts), tables, strict=True))
        for number, part in enumerate(self.layers):
            where = f"{number} {part.name}"
            yield [
                replace(stage, name=f"{where}: {stage.name}", place=(number, *stage.place))
                for stage in table_of[id(part)].stages
            ]


def _freeing(stages: list[Stage], more: Number) -> list[Stage]:
    """Return the stages; the last one frees ``more`` bytes in addition."""
    if stages:
        stages[-1] = replace(stages[-1], frees=stages[-1].frees + more)
    return stages


MECHANISMS = ()
