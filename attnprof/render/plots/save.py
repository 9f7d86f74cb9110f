"""Figures to files: the format by the suffix, the file whole or not there, the bytes repeatable."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.errors import RequestError
from attnprof.record import write_whole
from attnprof.record.recognition import MAKER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What each format says of its making: by whom, so that it is known again; no more, so that the
#: bytes repeat.
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": MAKER},
    ".svg": {"Date": None, "Creator": MAKER},
    ".pdf": {"CreationDate": None, "Creator": MAKER, "Producer": None},
}
SUFFIXES = tuple(METADATA)


def is_figure_path(path: Path | None) -> bool:
    """Whether a path asks for a figure rather than for data."""
    return path is not None and path.suffix.lower() in METADATA


def check_figure_path(path: str | Path) -> str:
    """The format a path asks for; :class:`RequestError` for one that is not drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        asked = f"'{suffix}'" if suffix else "no suffix"
        raise RequestError(
            f"cannot draw {path}: {asked}; figures are written as {', '.join(SUFFIXES)}, "
            f"for example {Path(path).with_suffix('.png')}"
        )
    return suffix


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF.

    Raises :class:`RequestError` for another suffix and for a path that cannot be written.
    """
    write_whole(path, figure_bytes(figure, check_figure_path(path)))


def figure_bytes(figure: Figure, suffix: str = ".png") -> bytes:
    """A figure as it stands in a file."""
    stream = BytesIO()
    figure.savefig(stream, format=suffix[1:], metadata=METADATA[suffix])
    return stream.getvalue()
