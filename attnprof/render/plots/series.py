"""Results as curves: which records belong to one line, and what the line is called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.escapes import figure_text
from attnprof.render.plots import style

Records = Sequence[Any]
#: What may tell curves apart beside the mechanism, in the order a label names it, and its words.
_FIELDS = {
    "params": "", "phase": "{}", "causal": "", "dtype": "{}", "batch_size": "batch {}",
    "d_model": "d_model {}", "num_heads": "heads {}", "scope": "{}", "device": "{}",
    "seq_len": "{} tokens",
}  # fmt: skip
#: Line styles of the curves of one mechanism, in order; markers with them.
STYLES: tuple[tuple[Any, str], ...] = (
    ("-", "o"), ((0, (4, 1.5)), "s"), ((0, (1, 1)), "^"), ((0, (4, 1, 1, 1)), "D"), ("-", "v"),
    ((0, (4, 1.5)), "P"), ((0, (1, 1)), "X"), ((0, (4, 1, 1, 1)), "<"),
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One curve: its mechanism, label and look, and its records by the axis' value."""

    mechanism: str
    label: str
    look: Mapping[str, Any]
    records: tuple[Any, ...]

    def points(self, axis: str, field: str, unit: float = 1) -> tuple[list[float], list[float]]:
        """Where the field has a value, in this unit."""
        known = [r for r in self.records if getattr(r, field) is not None]
        return [getattr(r, axis) for r in known], [getattr(r, field) / unit for r in known]


def series_of(records: Records, axis: str, without: Sequence[str] = ()) -> list[Series]:
    """Curves over ``axis`` (``seq_len``, ``d_model``, ``num_heads``); labels say what differs.

    Records that differ only in fields ``without`` are points of one curve.
    """
    fields = [name for name in _FIELDS if name != axis and name not in without]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for record in records:
        # a module's own arguments are lists
        params = tuple(sorted((key, str(item)) for key, item in record.params.items()))
        told = (params if name == "params" else getattr(record, name) for name in fields)
        groups.setdefault((record.mechanism, *told), []).append(record)
    names, *columns = zip(*groups, strict=True)
    # parameters tell curves apart within a mechanism only
    varying = {
        field for field, its in zip(fields, columns, strict=True)
        if (len({*zip(names, its, strict=True)}) > len({*names}) if field == "params"
            else len({*its}) > 1)
    }  # fmt: skip
    settings, colour = varying_params(records), style.colours(names)
    found: list[Series] = []
    for (name, *values), members in groups.items():
        differs = {field: v for field, v in zip(fields, values, strict=True) if field in varying}
        place = sum(series.mechanism == name for series in found)
        line, marker = STYLES[place % len(STYLES)]
        look = {"color": colour[name], "linestyle": line, "marker": marker}
        ordered = tuple(sorted(members, key=lambda r: getattr(r, axis)))
        found.append(Series(name, _label(name, differs, settings[name]), look, ordered))
    return found


def varying_params(records: Records) -> dict[str, list[str]]:
    """By mechanism, the parameters in which its records differ."""
    values: dict[str, dict[str, set[str]]] = {}
    for record in records:
        own = values.setdefault(record.mechanism, {})
        for name, value in record.params.items():
            own.setdefault(name, set()).add(str(value))
    return {name: [k for k, its in own.items() if len(its) > 1] for name, own in values.items()}


def _label(mechanism: str, told: Mapping[str, Any], settings: Sequence[str]) -> str:
    words = [mechanism]
    for name, value in told.items():
        if name == "params":
            words += [f"{k}={v}" for k, v in value if k in settings]
        elif name == "causal":
            words += ["causal"] if value else []
        else:
            words.append(_FIELDS[name].format(value))
    return figure_text(", ".join(words))


def need(records: Sequence[Any], why: str) -> None:
    """RequestError where there is nothing to draw."""
    if not records:
        raise RequestError(f"nothing to draw: {why}")


def draw_curve(axes: style.Axes, series: Series, points: Sequence[Any], **look: Any) -> None:
    """One curve in its own style, with its marker at every point."""
    axes.plot(*points, **{"markersize": 3, **series.look, **look})


def length_axis(axes: style.Axes, lengths: Sequence[int], label: str = "sequence length") -> None:
    """Both axes logarithmic; a few powers of two below."""
    axes.set_xscale("log", base=2)
    if axes.dataLim.y1 > 0:
        axes.set_yscale("log")  # else there is nothing that could be drawn so
    axes.grid(visible=True)
    axes.minorticks_off()
    low, high = math.floor(math.log2(min(lengths))), math.ceil(math.log2(max(lengths)))
    axes.set_xticks(*style.power_ticks(low, max(high, low + 1)))
    axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.6)
    axes.set_xlabel(label)


def series_legend(figure: style.Figure, found: Sequence[Series]) -> None:
    """One entry a curve, above the panels."""
    letters = max(len(s.label) for s in found) + 9  # the line and the gap between columns
    columns = max(1, min(4, int(figure.get_figwidth() * 15 / letters)))
    looks = [{**s.look, "markersize": 3, "label": s.label} for s in found]
    style.legend(figure, looks, columns, handlelength=3)
