"""Put measured points into a sentence: which mechanism is faster, by how much, how surely."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attnprof.record import ProfileRecord
from attnprof.record.measured import names_of, varying
from attnprof.units import format_bytes, format_ratio, format_time, joined, plural, setting_text


def answer(records: Sequence[ProfileRecord]) -> str:
    """Return who is fastest against the first mechanism, at the longest length most ran at."""
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
    where = joined(
        [plural(sizes[0], "token"), *(f"{titles[n]} {setting_text(its)}" for n, its in others)]
    )
    said = _comparison(group) if len(group) > 1 else _single_time(*group[0])
    return f"At {where}{',' * bool(conditions)} {said}."


def _single_time(name: str, record: ProfileRecord) -> str:
    peak, ends = record.peak_bytes_measured, (record.ci_low_s, record.ci_high_s)
    span = " to ".join(format_time(end) for end in ends if end is not None)
    memory = "" if peak is None else f" and {format_bytes(peak)} of memory at its peak"
    return f"{name} takes {format_time(record.median_s or 0.0)}{span and f' ({span})'}{memory}"


def _comparison(group: Sequence[tuple[str, ProfileRecord]]) -> str:
    """Return how the fastest other mechanism compares with the first, in time and peak memory.

    The range of the ratio takes the outer ends of both intervals.
    """
    base, first = group[0]
    name, other = min(group[1:], key=lambda item: item[1].median_s or 0.0)
    share = format_ratio(other.median_s or 0.0, first.median_s or 1.0)
    sentence, also = f"{name} takes {share}× the time of {base}", "and"
    if other.ci_low_s and other.ci_high_s and first.ci_low_s and first.ci_high_s:
        low, high = other.ci_low_s / first.ci_high_s, other.ci_high_s / first.ci_low_s
        ends = f"{format_ratio(low)}× to {format_ratio(high)}× by the ends of both intervals"
        if low <= 1 <= high:
            sentence, also = f"{name} takes as long as {base} within the noise", "and needs"
        sentence += f" ({ends})"
    ours, theirs = other.peak_bytes_measured, first.peak_bytes_measured
    if ours is not None and theirs:
        again = f"{also} {format_ratio(ours, theirs)}× its"
        sentence += f" {again if ours != theirs else 'and needs the same'} peak memory"
    if len(group) == 2:
        return sentence
    best = min((record for _, record in group), key=lambda record: record.median_s or 0.0)
    end = best.ci_high_s or best.median_s or 0.0
    fastest = [n for n, r in group if (r.ci_low_s or r.median_s or 0.0) <= end]
    return f"{sentence}; fastest of {len(group)}: {' or '.join(fastest)}"
