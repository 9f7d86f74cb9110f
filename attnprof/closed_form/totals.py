"""Mechanisms side by side: the totals of each, and which is lowest in what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from attnprof.closed_form.cost_records import defined_total, identity
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.record import CompareRecord
from attnprof.workload import Workload

#: What can be won: lowest is best.
CONTESTED = (
    "flops", "matmul_flops", "operations", "bytes_moved", "peak_bytes", "parameters", "state_bytes",
)  # fmt: skip


def compare_records(
    mechanisms: Sequence[Mechanism], workloads: Sequence[Workload], scope: str
) -> list[CompareRecord]:
    """One record a mechanism and workload, winners marked among those of one workload.

    A mechanism that refuses is a record with the reason. Raises :class:`RequestError` where
    every one refuses.
    """
    records = [
        totals(mechanism, workload, scope) for workload in workloads for mechanism in mechanisms
    ]
    if all(record.skipped for record in records):
        raise RequestError(records[0].skipped or "")
    marked: list[CompareRecord] = []
    for _, group in groupby(records, key=lambda record: record.seq_len):
        marked += with_winners(list(group))
    return marked


def totals(mechanism: Mechanism, workload: Workload, scope: str) -> CompareRecord:
    """What one mechanism costs in all for one workload."""
    who: dict[str, Any] = identity(mechanism, workload, scope)
    try:
        table = mechanism.cost(workload, scope)
        parameters = mechanism.parameters(workload, scope)
    except RequestError as refusal:
        return CompareRecord(**who, skipped=str(refusal))
    total, decodes = table.total, mechanism.abilities.decode
    return CompareRecord(
        **who,
        flops=total.flops,
        matmul_flops=total.matmul_flops,
        operations=defined_total(mechanism, workload, scope),
        bytes_moved=total.bytes_moved,
        peak_bytes=table.peak(),
        parameters=parameters,
        state_bytes=table.state_entries * workload.item_size if decodes else None,
        arithmetic_intensity=total.flops / total.bytes_moved if total.bytes_moved else None,
    )


def with_winners(records: list[CompareRecord]) -> list[CompareRecord]:
    """The records with ``wins``: names of the quantities in which one is lowest.

    Equal lowest values win together; where all are equal nobody wins.
    """
    wins: list[list[str]] = [[] for _ in records]
    for name in CONTESTED:
        values = [getattr(record, name) for record in records]
        known = [value for value in values if value is not None]
        if len(set(known)) < 2:
            continue
        for won, value in zip(wins, values, strict=True):
            if value == min(known):
                won.append(name)
    return [replace(record, wins=",".join(won)) for record, won in zip(records, wins, strict=True)]
