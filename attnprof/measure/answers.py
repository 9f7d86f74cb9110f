"""What measured points say in a sentence: who is faster, by how much, how sure that is."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attnprof.record import ProfileRecord
from attnprof.record.points import names_of, varying
from attnprof.units import format_bytes, format_time, setting_text


def answer(records: Sequence[ProfileRecord]) -> str:
    """The fastest mechanism beside the first one, at the longest length that most ran at."""
    groups: dict[Any, list[tuple[str, ProfileRecord]]] = defaultdict(list)
    conditions = varying(records)
    for name, record in zip(names_of(records), records, strict=True):
        if record.median_s and record.skipped is None:
            key = (record.seq_len, *(getattr(record, its) for its in conditions))
            groups[key].append((name, record))
    if not groups:
        return ""
    sizes, group = max(groups.items(), key=lambda item: (len(item[1]), item[0][0]))
    titles = {name: meta["title"] for name, meta in ProfileRecord.columns()}
    others = zip(conditions, sizes[1:], strict=True)
    where = [f"{sizes[0]:,} tokens", *(f"{titles[n]} {setting_text(its)}" for n, its in others)]
    return f"At {', '.join(where)} {_compared(group) if len(group) > 1 else _alone(*group[0])}."


def _alone(name: str, record: ProfileRecord) -> str:
    low, high = record.ci_low_s or 0.0, record.ci_high_s or 0.0
    peak = record.peak_bytes_measured
    memory = "" if peak is None else f" and {format_bytes(peak)} of memory at its peak"
    time = format_time(record.median_s or 0.0)
    return f"{name} takes {time} ({format_time(low)} to {format_time(high)}){memory}"


def _compared(group: Sequence[tuple[str, ProfileRecord]]) -> str:
    """The fastest of the others beside the first; the range is by the ends of both intervals."""
    base, first = group[0]
    name, other = min(group[1:], key=lambda item: item[1].median_s or 0.0)
    high = (other.ci_high_s or 0.0) / (first.ci_low_s or 1.0)
    low = (other.ci_low_s or 0.0) / (first.ci_high_s or 1.0)
    share = _ratio((other.median_s or 0.0) / (first.median_s or 1.0))
    ends, also = f"{_ratio(low)} to {_ratio(high)}", "and"
    told = f"{name} takes {share}× the time of {base} ({ends})"
    if low <= 1 <= high:
        told, also = f"{name} takes as long as {base} within the noise ({ends}×)", "and needs"
    ours, theirs = other.peak_bytes_measured, first.peak_bytes_measured
    if ours is not None and theirs:
        told += f" {also} {_ratio(ours / theirs)}× its peak memory"
    if len(group) == 2:
        return told
    best = min((record for _, record in group), key=lambda record: record.median_s or 0.0)
    fastest = [n for n, r in group if (r.ci_low_s or 0.0) <= (best.ci_high_s or 0.0)]
    return f"{told}; fastest of {len(group)}: {' or '.join(fastest)}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 10 else f"{value:.2g}" if value < 1 else f"{value:,.0f}"
