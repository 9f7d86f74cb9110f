"""Whether a model fits into a memory, phase by phase, by its counted bytes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnprof.record import ModelRecord, Report
from attnprof.units import format_bytes
from attnprof.workload import ITEM_SIZES


def with_memory(report: Report, memory: int) -> Report:
    """Return the report of ``model`` with the bytes each phase needs, and whether they fit.

    A phase holds the parameters and the most that its call adds (``peak``); a decoding step also
    the ``cache`` of the tokens before it, a training step the state of the optimizer. Nothing is
    reserved for the context of a device or a framework's fragments.
    """
    rows = {
        (row.phase, row.quantity): int(row.value or 0)
        for row in report.of(ModelRecord) if row.part == "total"
    }  # fmt: skip
    phases = {phase: _parts(phase, rows, report.summary) for phase in report.summary["phases"]}
    lacking = {
        row.phase for row in report.of(ModelRecord)
        if row.part == "total" and (row.quantity, row.bound) == ("peak_bytes", "at least")
    }  # fmt: skip
    if not phases.get("decode", {}).get("cache", 1):  # of some models no cache is counted
        lacking.add("decode")
    needs = {phase: sum(parts.values()) for phase, parts in phases.items()}
    by_phase = {
        phase: {**parts, "needed": needs[phase], "fits": needs[phase] <= memory,
            "bound": "at least" if phase in lacking else "exact",
        }
        for phase, parts in phases.items()
    }  # fmt: skip
    sentences = (_said(phase, one, memory) for phase, one in by_phase.items())
    summary = {
        **report.summary, "answer": f"{'; '.join(sentences)}.", "memory_bytes": memory,
        "needed_bytes": needs, "fits": all(one["fits"] for one in by_phase.values()),
        "phase_memory": by_phase,
    }  # fmt: skip
    return replace(report, summary=summary)


def _parts(
    phase: str, rows: Mapping[tuple[str, str], int], summary: Mapping[str, Any]
) -> dict[str, int]:
    """Return the bytes that a phase holds: parameters, the cache, and all else at its peak."""
    training = summary.get("memory")  # it knows buffers, too
    held = summary["parameters"] * ITEM_SIZES[summary["dtype"]]
    held = training["parameters"] if training else held
    if training and phase == "train":
        return {"parameters": held, "cache": 0, "peak": training["peak"] - held}
    cache = rows.get(("decode", "cache_bytes"), 0) if phase == "decode" else 0
    return {"parameters": held, "cache": cache, "peak": rows[phase, "peak_bytes"]}


def _said(phase: str, one: Mapping[str, Any], memory: int) -> str:
    """Return a sentence: ``train does not fit: needs 120 GiB, there are 74.5 GiB``."""
    needed, there = format_bytes(one["needed"]), format_bytes(memory)
    at_least = "at least " * (one["bound"] == "at least")
    verdict = "fits" if one["fits"] else "does not fit"
    return f"{phase} {verdict}: needs {at_least}{needed}, there are {there}"
