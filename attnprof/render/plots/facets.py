"""Lay out small multiples: a panel for each combination of varying fields, under one legend."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attnprof.record.escapes import figure_text
from attnprof.render.plots import style, ticks
from attnprof.units import plural

Records = Sequence[Any]

#: Fields in which points of one mechanism differ besides parameters, with their text in titles.
FIELDS: Mapping[str, Callable[[Any], str]] = {
    "phase": str, "causal": lambda its: "causal" if its else "not causal",
    "compiled": lambda its: "compiled" if its else "not compiled", "dtype": str,
    "scope": "scope {}".format, "device": str, "batch_size": "batch {:,}".format,
    "d_model": "d_model {:,}".format, "num_heads": partial(plural, noun="head"),
    "seq_len": partial(plural, noun="token"), "input": "{} input".format,
    "norms": "norms: {}".format,
}  # fmt: skip
#: Inches of a panel's width, less where there are more rows than these, and of a row's height.
LEAST, NARROWEST, ROWS, ROW, LOWEST, LOWEST_3D = 1.55, 1.05, 8, 1.6, 1.0, 1.8


def facets(records: Records, *axes: str) -> list[tuple[str, Records]]:
    """Return the records of each panel after a title with the values that set them apart.

    Panels differ in all fields that vary and are no axis. If none does, one panel has no title.
    """
    fields = [f for f in FIELDS if f not in axes and len(_values(records, f)) > 1]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record, field) for field in fields), []).append(record)
    ordered = sorted(groups, key=lambda its: [(v is not None, v) for v in its])
    return [(", ".join(map(_field_text, fields, values)), groups[values]) for values in ordered]


def _values(records: Records, field: str) -> set[Any]:
    return {getattr(record, field, None) for record in records}


def _field_text(field: str, value: Any) -> str:
    return f"{field} unknown" if value is None else FIELDS[field](value)


def fewer(records: Records, *axes: str) -> str:
    """Return the flag that picks one value of the field that varies most: ``--where dtype=…``."""
    field = max((f for f in FIELDS if f not in axes), key=lambda f: len(_values(records, f)))
    flag = f"--{field} " if field in ("input", "norms") else f"--where {field}="
    return f"{flag}{getattr(records[0], field)}"


def shared(records: Records) -> str:
    """Return the fields that all these records share, in words for a caption."""
    same = {f: next(iter(its)) for f in FIELDS if len(its := _values(records, f)) == 1}
    return ", ".join(_field_text(f, v) for f, v in same.items() if v is not None and v is not False)


class PanelGrid:
    """The panels of a figure, one for each facet and quantity; a quantity's axes are shared.

    Facets are columns and quantities rows, in as many blocks as the width needs; a single facet
    has its quantities side by side. Rows end after a multiple of ``period``, by default the number
    of values of the field that varies last. ``how`` is for 3-D panels.
    Raises RequestError if a page does not hold them, with ``less`` as an example of fewer.
    """

    def __init__(
        self, titles: Sequence[str], quantities: int = 1, *, less: str, period: int = 0,
        least: float = LEAST, square: bool = False, **how: Any,
    ) -> None:  # fmt: skip
        count, one = len(titles) * quantities, len(titles) == 1
        last = period or len({title.rpartition(", ")[2] for title in titles})
        columns = style.abreast(quantities) if one else style.abreast(len(titles), least)
        if not (one or style.narrow()) and len(titles) / columns * quantities > ROWS:
            columns = style.abreast(len(titles), NARROWEST)
        columns = columns // last * last or columns
        rows = -(-count // columns) if one else -(-len(titles) // columns) * quantities
        low = LOWEST_3D if how else LOWEST
        style.check_rows(rows, low, less)
        self.figure = style.new_figure(0.35)
        side = self.figure.get_figwidth() / columns
        most = min(3.2, 0.8 * side) if square else 2.6 if one or how else ROW
        height = max(low, min(most, 8.5 / rows))
        self.figure.set_figheight(0.35 + rows * height)
        spec = self.figure.add_gridspec(rows, columns)
        places = [
            [divmod(row, columns) if one else (place // columns * quantities + row, place % columns)
             for row in range(quantities)]
            for place in range(len(titles))
        ]  # fmt: skip
        self.panels: list[list[style.Axes]] = [
            [self.figure.add_subplot(spec[spot], **how) for spot in spots] for spots in places
        ]
        first = self.panels[0]
        taken = {spot for spots in places for spot in spots}
        letters, lines = int((side - 0.25) * 16), 0
        for title, spots, its in zip(titles, places, self.panels, strict=True):
            # in lines that are broken after commas
            whole = figure_text(title).replace(" ", "\xa0").replace(",\xa0", ", ")
            its[0].set_title(style.in_lines(whole, letters), fontsize=style.SMALL)
            lines = max(lines, its[0].get_title().count("\n"))
            for (row, column), axes, same in zip(spots, its, first * (not how), strict=False):
                axes.sharex(first[0])
                axes.sharey(same)
                axes.grid(visible=True)
                below = (row + 1, column) in taken
                axes.tick_params(length=2, labelbottom=not below, labelleft=one or column == 0)
        style.grow(self.figure, lines * rows // quantities)

    def label(self, x: str, *ys: str) -> None:
        """Write the names of the axes beside those panels that show the axes' numbers."""
        for axes, y in (pair for its in self.panels for pair in zip(its, ys, strict=True)):
            for axis, label, at in ((axes.xaxis, x, "labelbottom"), (axes.yaxis, y, "labelleft")):
                short = ticks.inches(axis) * 16.2 < len(label)
                said = "\n".join(label.rsplit(" ", 1)) if short else label
                axis.set_label_text(said * axis.get_tick_params()[at])
