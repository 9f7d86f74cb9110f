"""The style of every figure, and writing one to a file: completely or not at all, reproducibly.

:func:`plot` draws in the house style and writes. Panels, legends, captions and notes are placed by
the functions before it, so that texts fold and the figure grows with them.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from re import sub
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias
from warnings import catch_warnings, filterwarnings

from attnprof.errors import RequestError
from attnprof.record import write_whole
from attnprof.record.escapes import figure_text
from attnprof.record.recognition import MAKER

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

#: Types of figures; matplotlib is imported when one is drawn.
Axes: TypeAlias = "matplotlib.axes.Axes"
Figure: TypeAlias = "matplotlib.figure.Figure"
Look = Mapping[str, Any]
Place = tuple[float, float]

#: Okabe and Ito's palette, told apart by colour-blind readers; wine for yellow, too pale for lines.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, WINE = "#CC79A7", "#56B4E9", "#000000", "#882255"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, WINE)
#: Mechanisms that meet in one figure keep their colour through all of them.
COLOURS = {
    "standard": BLACK, "sdpa": BLUE, "optimised": SKY, "efficient": GREEN, "super": PURPLE,
    "taylor-direct": VERMILION, "taylor-efficient": BLUE, "taylorshift": GREEN,
}  # fmt: skip
#: Dashes and markers of a figure's curves, in order: 45 of them differ in grey, too.
DASHES: Any = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "os^DvPX<>"
#: The line of a kind of number.
LINES: dict[str, Any] = {
    "formula": "-", "published": (0, (5, 2)), "derived": ":", "predicted": "-.", "measured": "-",
}  # fmt: skip
#: How a crossover or optimum of a kind is marked.
MARKS: dict[str, dict[str, Any]] = {
    "published": {"marker": "o", "markersize": 5.5, "markerfacecolor": "none"},
    "formula": {"marker": "D", "markersize": 3.5, "markerfacecolor": "black"},
    "derived": {"marker": "s", "markersize": 5.5, "markerfacecolor": "none"},
    "predicted": {"marker": "v", "markersize": 5.5, "markerfacecolor": "none"},
    "measured": {"marker": "^", "markersize": 5.5, "markerfacecolor": "none"},
}
#: In points: a figure is printed at its own size.
SMALL, NORMAL = 7, 8
#: Inches from side to side of a figure that is as wide as a page's text, or as one of two columns.
WIDTHS = {"page": 7.0, "column": 3.3}
#: Inches of a page's text from top to bottom.
HEIGHT = 9.5
_width: ContextVar[float] = ContextVar("width of figures", default=WIDTHS["page"])
MIB = 2**20
GREY = "0.45"
#: Looks of a text centred on its position, and of one that covers curves.
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}
ON_WHITE: Any = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8}, "zorder": 6}

# Any: matplotlib types the keys as a closed list of its own version
STYLE: Any = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), NORMAL),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), SMALL),
    **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("figure.dpi", "savefig.dpi"), 200),
    "axes.axisbelow": True, "hatch.linewidth": 0.3, "grid.linewidth": 0.4, "grid.color": "0.88",
    "lines.linewidth": 1.3, "pdf.fonttype": 42,
    "svg.hashsalt": "attnprof",  # the same bytes from the same numbers
}  # fmt: skip
#: Metadata by format: the maker, by which a file of ours is recognised, and no date, so that the
#: same figure has the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": MAKER},
    ".svg": {"Date": None, "Creator": MAKER},
    ".pdf": {"CreationDate": None, "Creator": MAKER, "Producer": None},
}
#: Bytes of an SVG above which a page has a PNG: surfaces are made of thousands of shapes.
LARGEST_SVG = 300_000
#: Dots an inch of that PNG.
SCREEN_DPI = 110


@contextmanager
def styled(size: str = "page") -> Iterator[None]:
    """Apply the house style in the body; other code's settings come back."""
    import matplotlib as mpl

    token = _width.set(WIDTHS[size])
    try:
        with mpl.rc_context(STYLE), catch_warnings():
            filterwarnings("ignore", "Glyph .* missing")  # of somebody's name: a box stands for it
            yield
    finally:
        _width.reset(token)


def new_figure(height: float) -> Figure:
    """Return an empty figure of the current width, without pyplot's state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_width.get(), height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def narrow() -> bool:
    """Return whether figures are narrower than a page now."""
    return _width.get() < WIDTHS["page"]


def abreast(count: int, least: float = 2.0) -> int:
    """Return how many of ``count`` panels, each at least so wide, stand in rows of equal length."""
    rows = -(-count // max(1, int(_width.get() / least)))
    return -(-count // rows)


def check_rows(rows: int, low: float, less: str) -> None:
    """Raise RequestError if rows, each at least ``low`` high, leave the page.

    ``less`` is how to ask for fewer.
    """
    if rows * low > HEIGHT:
        wider = ", or type --size page" * (narrow() and rows * low < 2 * HEIGHT)
        raise RequestError(f"no page holds {rows} rows of panels: ask for less, like {less}{wider}")


def split(figure: Figure, count: int, least: float = 2.0, **options: Any) -> list[Axes]:
    """Return panels in reading order, each at least so wide; ``figure`` is as high as one row."""
    columns = abreast(count, least)
    rows = -(-count // columns)
    figure.set_figheight(figure.get_figheight() * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return panels[:count]


def looks(
    names: Mapping[str, str] | Sequence[str], kinds: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return by name a colour, a marker and, unless lines tell ``kinds`` apart, a line style.

    A name may map to its mechanism, whose colour it has; else the least used colour.
    """
    mechanisms = names if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
    shades, looks_by_name = dict[str, str](), dict[str, dict[str, Any]]()
    for name in dict.fromkeys(mechanisms.values()):
        shade, used = COLOURS.get(name, ""), list(shades.values())
        shades[name] = shade if shade and shade not in used else min(PALETTE, key=used.count)
    for place, (name, mechanism) in enumerate(mechanisms.items()):
        line = {"linestyle": DASHES[place % 5]} if len(set(kinds)) < 2 else {}
        marker = {"marker": MARKERS[place % 9], "markersize": 3}
        looks_by_name[name] = {"color": shades[mechanism], **line, **marker}
    return looks_by_name


def label_panels(axes: Sequence[Axes]) -> None:
    """Write (a), (b), … left above each panel, as texts refer to them."""
    for place, panel in enumerate(axes):
        panel.set_title(f"({chr(97 + place % 26)})", loc="left", fontsize=SMALL, color=GREY)


def set_3d_view(axes: Any, *labels: str) -> None:
    """Set a 3-D panel's view, and the names of its axes near their numbers."""
    axes.view_init(elev=22, azim=-125)
    axes.set_box_aspect((1, 1, 0.75), zoom=1.1)
    for name, label, pad in zip("xyz", labels, (-3, -3, 0), strict=False):
        axes.tick_params(axis=name, pad=pad)
        getattr(axes, f"set_{name}label")(label, labelpad=pad - 3)


def short_count(value: float) -> str:
    """Return a count for a figure: ``73``, ``4,160.5``, ``1,048,577``, ``1e+18``."""
    if value >= 2**53:  # floats do not know their last digits
        return f"{value:.6g}"
    return f"{value:,.0f}" if value >= 100_000 else f"{value:,.1f}".removesuffix(".0")


def write_in_corner(axes: Axes, text: str, x: float = 0.03, y: float = 0.97, **look: Any) -> None:
    """Write a text below a position near the top of a panel, in shares of its size."""
    axes.text(x, y, text, transform=axes.transAxes, va="top", fontsize=SMALL, **look)


def write_beside(axes: Axes, text: str, point: Place, offset: Place, **look: Any) -> None:
    """Write a text ``offset`` points from a point of the data."""
    axes.annotate(text, point, offset, textcoords="offset points", fontsize=SMALL, **look)


def write_on_top(axes: Axes, text: str, x: float, *, left: bool, color: str = BLACK) -> None:
    """Write a text at the top of a panel, beside a vertical line."""
    look = {"color": color, "va": "top", "ha": "right" if left else "left"}
    offset = -2 if left else 2, -1
    write_beside(axes, text, (x, 1.0), offset, xycoords=("data", "axes fraction"), **look)


def sources_of(records: Sequence[Any]) -> str:
    """Return where the records' printed formulas are printed; "" for none."""
    sources = dict.fromkeys(record.source for record in records if record.source)
    return f"published: {', '.join(sources)}" if sources else ""


def caption(figure: Figure, *parts: str) -> None:
    """Write the caption below a figure: its conditions and sources; empty parts are left out.

    Call it last: it limits the figure to the height of a page.
    """
    text = _folded_text(figure, "\xa0· ".join(filter(None, parts)), 17)  # of the small size
    figure.supxlabel(text, fontsize=SMALL, color=GREY, x=0.01, ha="left")
    figure.set_figheight(min(HEIGHT, figure.get_figheight()))


def title(figure: Figure, text: str) -> None:
    """Write the title of a figure without a legend; :func:`legend` writes it otherwise."""
    figure.suptitle(_folded_text(figure, text, 15), fontsize=NORMAL)


def in_lines(text: str, letters: int) -> str:
    """Return a text in lines of so many letters, broken also inside names.

    A no-break space never ends a line.
    """
    # where a line may end, and nothing is drawn
    parts = sub(r"(?<=[/:])(?=[^\W\d])|(?<=\w\w_)|(?<=[a-z])(?=[A-Z][a-z])", "\v", text)
    lines = fill(parts, letters, break_on_hyphens=False, replace_whitespace=False)
    return lines.replace("\v", "").replace("\xa0", " ")


def _folded_text(figure: Figure, text: str, letters_an_inch: int) -> str:
    """Return a text folded to the figure's width; the figure grows by its lines."""
    lines = in_lines(figure_text(text), int(figure.get_figwidth() * letters_an_inch))
    grow(figure, 1 + lines.count("\n"))
    return lines


def grow(figure: Figure, lines: int) -> None:
    """Add room for lines of text outside the panels, whose height stays."""
    figure.set_figheight(figure.get_figheight() + 0.14 * lines)


def legend(figure: Figure, looks: Sequence[Look], title: str = "", **options: Any) -> None:
    """Write the title and one legend above all panels; an entry a line's look."""
    from matplotlib.lines import Line2D

    room = int(figure.get_figwidth() * 17)
    labels = [in_lines(str(look.get("label", "")), room - 9) for look in looks]
    marks = [Line2D([], [], **{**look, "label": label})
             for look, label in zip(looks, labels, strict=True)]  # fmt: skip
    # besides its letters an entry has its line and the gap between columns
    letters = [max(map(len, label.split("\n"))) + 9 for label in labels]
    options["ncols"] = max(1, len(looks) if sum(letters) < room else room // max(letters))
    grow(figure, -(-(len(looks) + "".join(labels).count("\n")) // options["ncols"]))
    if title:
        options |= {"title": _folded_text(figure, title, 15), "title_fontsize": NORMAL}
    drawn = figure.legend(handles=marks, loc="outside upper center", **options)
    drawn.get_title().set_multialignment("center")


def draw_legend(
    figure: Figure, by_name: Mapping[str, Look], kinds: Sequence[str], title: str, *, marked: bool
) -> None:
    """Draw the legend of mechanisms by look, and of kinds by line where they differ."""
    entries = [{**look, "label": figure_text(name)} for name, look in by_name.items()]
    for kind in dict.fromkeys(kinds) if len(set(kinds)) > 1 else ():
        mark = MARKS.get(kind, {}) if marked else {}
        line = {"color": GREY, "markeredgecolor": "black", "linestyle": LINES.get(kind, "-")}
        entries.append({**line, "label": kind, **mark})
    legend(figure, entries, title=title, handlelength=3)


def is_figure_path(path: Path | None) -> bool:
    """Return whether a path asks for a figure rather than for data."""
    return path is not None and path.suffix.lower() in METADATA


def check_figure_path(path: str | Path) -> str:
    """Return the format of a figure's path; :class:`RequestError` for another suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        ending = f"'{suffix}'" if suffix else "no suffix"
        example = Path(path) if Path(path).name else Path("figure")
        raise RequestError(
            f"cannot draw {path}: {ending}; figures are written as {', '.join(METADATA)}, "
            f"for example {example.with_suffix('.png')}"
        )
    return suffix


def plot(path: str | Path, draw: Callable[..., Figure], *what: Any, size: str = "page") -> None:
    """Draw in the house style and write the figure as PNG, SVG or PDF.

    ``what`` are the arguments of ``draw``. Raises :class:`RequestError` for another suffix and for
    a path that cannot be written.
    """
    suffix = check_figure_path(path)
    with styled(size):
        write_whole(path, figure_bytes(draw(*what), suffix))


def inline_figure(draw: Callable[..., Figure], *what: Any, name: str) -> str:
    """Return a figure as an element of a page of HTML, an SVG with texts, its ids with ``name``."""
    import matplotlib as mpl

    with styled(), mpl.rc_context({"svg.fonttype": "none", "savefig.dpi": SCREEN_DPI}):
        figure = draw(*what)
        text = figure_bytes(figure, ".svg").decode()
        if len(text) > LARGEST_SVG:
            data = b64encode(figure_bytes(figure)).decode()
            return f'<img alt="" src="data:image/png;base64,{data}">'
    element = sub(r"(?s)<metadata>.*?</metadata>", "", text[text.index("<svg") :])
    element = sub(r' d="[^"]+"', lambda path: sub(r"(\.\d\d)\d+", r"\1", path[0]), element)
    return sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)


def figure_bytes(figure: Figure, suffix: str = ".png") -> bytes:
    """Return a figure as the bytes of its file."""
    stream = BytesIO()
    figure.savefig(stream, format=suffix[1:], metadata=METADATA[suffix])
    return stream.getvalue()
