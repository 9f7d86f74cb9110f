"""Tell measured points apart, by the names and conditions in which they differ."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnprof.units import setting_text

#: Fields of a point's conditions, besides its mechanism and sequence length.
CONDITIONS = (
    "phase", "causal", "compiled", "scope", "batch_size", "d_model", "num_heads", "dtype", "device",
)  # fmt: skip


def varying(records: Sequence[Any]) -> list[str]:
    """Return the conditions that differ between points: ``["dtype", "num_heads"]``."""
    return [name for name in CONDITIONS if len({getattr(r, name, None) for r in records}) > 1]


def names_of(records: Sequence[Any]) -> list[str]:
    """Return a name for each record: its mechanism and those parameters that vary."""
    known: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in records:
        for name, value in record.params.items():
            known[record.mechanism, name].add(setting_text(value))
    return [
        " ".join([record.mechanism, *(
            f"{name}={setting_text(value)}" for name, value in record.params.items()
            if len(known[record.mechanism, name]) > 1
        )])
        for record in records
    ]  # fmt: skip


def named_results(records: Sequence[Any]) -> list[Any]:
    """Return the records that were not skipped, each called by :func:`names_of`."""
    named = zip(records, names_of(records), strict=True)
    return [replace(record, mechanism=name) for record, name in named if record.skipped is None]
