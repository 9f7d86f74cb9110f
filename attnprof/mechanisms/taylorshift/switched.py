"""A cost table of two forms of which one is taken, for symbols and grids."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnprof.costs import Cost, CostTable, Number, Stage


def times(stage: Stage, flag: Number) -> Stage:
    """A stage where ``flag`` is 1, nothing where it is 0."""
    return replace(
        stage,
        cost=stage.cost * flag,
        allocates=stage.allocates * flag,
        frees=stage.frees * flag,
        workspace=stage.workspace * flag,
    )


@dataclass(frozen=True, slots=True)
class SwitchedTable(CostTable):
    """The stages of both forms, each times the flag that says whether it is taken.

    Totals and peaks come from the two tables, so that the flag stands in them twice and not
    once a stage: with symbols it is a long expression.
    """

    first: CostTable = CostTable(())
    second: CostTable = CostTable(())
    flag: Number = 1

    @property
    def total(self) -> Cost:
        """The sum of the stages that are executed."""
        total: Cost = self.first.total * self.flag + self.second.total * (1 - self.flag)
        return total

    @property
    def matmul_flops(self) -> Number:
        """Operations of the matrix products that are executed."""
        return self.total.matmul_flops

    def peak(self) -> Number:
        """The peak of the form that is taken, in bytes."""
        return self.first.peak() * self.flag + self.second.peak() * (1 - self.flag)


def switched(first: CostTable, second: CostTable, flag: Number) -> SwitchedTable:
    """The table of ``first`` where ``flag`` is 1 and of ``second`` where it is 0."""
    both = ((first, flag), (second, 1 - flag))
    return SwitchedTable(
        tuple(times(stage, taken) for table, taken in both for stage in table),
        first.parameters,
        sum(table.state_entries * taken for table, taken in both),
        sum(table.live_before * taken for table, taken in both),
        first=first,
        second=second,
        flag=flag,
    )
