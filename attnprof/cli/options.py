"""The flags that commands share, as ``Annotated`` types and groups of them; and where results go.

A group is a dataclass whose fields are flags. A command takes it as one parameter, whose fields
:mod:`attnprof.cli.parameters` declares to Typer, panel by panel. Lists arrive as text, which
:mod:`attnprof.cli.request` parses. Data goes to stdout or a file, notes to stderr.
"""

import contextlib
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option
from typer.models import ParameterInfo

import attnprof
from attnprof.arguments import at_least
from attnprof.errors import RequestError, closest
from attnprof.processes.progress import Progress, Step, waited_for, waiting
from attnprof.record import Report, write_whole
from attnprof.record.files import kind_of_file, why_of
from attnprof.record.recognition import is_stream, note_output
from attnprof.render import progress as display
from attnprof.render.plots.style import WIDTHS, check_figure_path
from attnprof.workload import DTYPES, SCOPES

note = display.note


class Format(StrEnum):
    """The formats of a result."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


#: Format by a file's suffix, if --format is not typed.
BY_SUFFIX = {".json": Format.JSON, ".csv": Format.CSV, ".md": Format.MARKDOWN,
             ".html": Format.HTML}  # fmt: skip


def flag(metavar: str, words: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Return an option with a value: the placeholder that help shows, and its explanation."""
    return Option(default, *names, metavar=metavar, help=words, **more)


def switch(names: str, words: str, *, default: bool | None = False) -> Any:
    """Return a flag that is on or off, ``--time/--no-time`` if both can be typed."""
    return Option(default, names, metavar="", help=words)  # typer 0.29 names a type otherwise


def one_of(value: str, possible: Sequence[str], flag: str) -> str:
    """Return the value, or raise :class:`RequestError` with the possible ones."""
    if value not in possible:
        if "," in value and {*value.split(",")} <= {*possible}:
            first = value.partition(",")[0]
            raise RequestError(f"{flag} {value}: one value is possible here; type {flag} {first}")
        noun = flag.removeprefix("--").replace("-", " ")
        shown = value or "''"
        raise RequestError(f"{flag} {shown}: unknown {noun}; {closest(value, list(possible))}")
    return value


def among(flag: str, possible: Sequence[str]) -> Callable[[str | None], str | None]:
    """Return a flag's callback that accepts these values, and None."""
    return lambda value: value if value is None else one_of(value, possible, flag)


def scope(words: str) -> Any:
    """Return a ``--scope`` flag with ``words`` for its help."""
    return Option(metavar="SCOPE", callback=among("--scope", SCOPES), help=words)


def _device(text: str) -> str:
    """Return a device's name unchecked: whether it exists shows when it is used."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise RequestError(f"unknown device '{text}': possible are auto, cpu, cuda and cuda:1")
    return text


def device_name(name: str | None) -> str | None:
    """Return the name of a device that may not be here, or None; RequestError for an empty one."""
    if name is None or name.strip():
        return name
    from attnprof.device.ceilings import GPUS

    possible = ", ".join(gpu.name for gpu in GPUS)
    raise RequestError(f"--on '': possible: {possible}, or a device that was calibrated")


def whole(default: int | None, flag: str, words: str, least: int, most: int | None = None) -> Any:
    """Return a flag for a whole number of at least ``least``, with ``words`` for its help."""

    def checked(value: int | None) -> int | None:
        return None if value is None else at_least(flag, value, least, most)

    return Option(default, flag, metavar="N", callback=checked, help=words)


def declared(annotation: Any, default: Any) -> Any:
    """Return the Typer declaration of a parameter, from its annotation or its default."""
    candidates = (*getattr(annotation, "__metadata__", ()), default)
    return next(info for info in candidates if isinstance(info, ParameterInfo))


def typed(group: Any) -> dict[str, Any]:
    """Return the values of a group that differ from the defaults, by flag."""
    values: dict[str, Any] = {}
    hints = get_type_hints(type(group), include_extras=True)
    for item in fields(group):
        default: Any = item.default
        info = declared(hints[item.name], default)
        default = info.default if info is default else default
        flags = [one for one in (info.default, *(info.param_decls or ())) if str(one)[:2] == "--"]
        flag = str(flags[0]).partition("/")[0] if flags else f"--{item.name.replace('_', '-')}"
        if (value := getattr(group, item.name)) not in (default, []):
            values[flag] = value
    return values


AttentionOption = Annotated[str | None, Option(
    "--attention", "-a", metavar="NAMES",
    help="Mechanisms (see: attnprof list) or my.py:Name, separated by commas.",
)]  # fmt: skip
SeqOption = Annotated[str | None, Option(
    metavar="SIZES",
    help="Tokens: one size, a list 128,256 or a range 128:16384:x2, 100:1000:+100.",
)]  # fmt: skip
BatchOption = Annotated[str, Option(metavar="SIZE", help="Batch size.")]
ScopeOption = Annotated[str, scope("core (what follows q, k, v) or layer (with projections).")]
OwnScopeOption = Annotated[
    str | None, scope("Of a mechanism: core (what follows q, k, v), or layer (the default).")
]
PhaseOption = Annotated[str, Option(
    metavar="PHASE", help="forward, prefill (causal forward), backward, train or decode.",
)]  # fmt: skip
KindOption = Annotated[str | None, Option(
    metavar="KINDS", help="published (printed in the papers) or formula (our closed form).",
)]  # fmt: skip
QuantityOption = Annotated[
    str | None, Option(metavar="NAMES", help="Only these quantities, like flops,peak_bytes.")
]
ConventionOption = Annotated[str, Option(
    metavar="NAME", callback=among("--convention", ("flops", "operations")),
    help="flops (what runs) or operations (as defined, k-1 additions in a product of k terms).",
)]  # fmt: skip
CausalOption = Annotated[
    bool, Option("--causal/--no-causal", help="Each token sees itself and those before it.")
]
DtypeOption = Annotated[str, Option(
    metavar="DTYPE", callback=among("--dtype", DTYPES),
    help="Number format: float64, float32, bfloat16 or float16.",
)]  # fmt: skip
DeviceOption = Annotated[str, Option(
    metavar="DEVICE", callback=_device,
    help="auto (CUDA if there is one), cpu, cuda or cuda:1.",
)]  # fmt: skip
SetOption = Annotated[
    list[str] | None,
    Option("--set", metavar="K=V", help="A mechanism's parameter, like window=64; repeatable."),
]
SwapOption = Annotated[
    list[str] | None,
    Option(
        "--swap", metavar="NAME[@LAYERS]",
        help="Put a mechanism into layers: all, or like @0, @2-5, @pattern=3:1; repeatable.",
    ),
]  # fmt: skip
FormatOption = Annotated[
    Format, Option("--format", "-f", metavar="FORMAT", help="table, json, csv, markdown or html.")
]
FileFormatOption = Annotated[Format, Option(
    "--format", "-f", metavar="FORMAT",
    help="table, json, csv, markdown or html (default: as FILE ends, or table).",
)]  # fmt: skip
OutputOption = Annotated[Path | None, Option(
    "--output", "-o", metavar="FILE", help="Write there instead of to stdout (-).",
)]  # fmt: skip
ForceOption = Annotated[
    bool, Option("--force", help="Replace files that attnprof did not write, but never its inputs.")
]
ExactOption = Annotated[bool, Option("--exact", help="Show all digits of every number.")]
PlotOption = Annotated[
    Path | None, Option(metavar="FILE", help="Draw it, too: a PNG, SVG or PDF file.")
]
SizeOption = Annotated[str, Option(
    metavar="|".join(WIDTHS), callback=among("--size", tuple(WIDTHS)),
    help="How wide the figure is: 7 inches, or the 3.3 of one of two columns.",
)]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Modules:
    """Flags for how a user's modules are constructed and called."""

    args: list[str] | None = flag("NAME=EXPR", "Constructor argument, like d_model=h*d.", "--arg")
    inputs: list[str] | None = flag("NAME:DIMS", "Input of a call, like 'x: B, N, h*d'.", "--input")
    config: Path | None = flag("FILE", "JSON or TOML with a configuration's fields, or arguments.")

    def __post_init__(self) -> None:
        if self.config is not None:
            object.__setattr__(self, "args", [f"config={self.config}", *(self.args or ())])


def environment(**more: Any) -> dict[str, Any]:
    """Return a report's environment: versions and platform; callers add those of libraries."""
    return {"attnprof": attnprof.__version__, "python": platform.python_version(),
            "platform": platform.platform(), **more}  # fmt: skip


def ensure_writable(
    path: Path | None, *, force: bool, flag: str = "--output", extended: bool = False
) -> None:
    """Refuse an output that cannot or must not be written, before any work is done.

    A file is overwritten only if attnprof wrote it, or with ``force``, and never if this command
    reads it. An ``extended`` file is added to and may exist.
    """
    if path is None:
        return
    try:
        why = "it means stdout" if str(path) == "-" else _unwritable(path)
    except (OSError, ValueError) as error:
        why = why_of(error)
    if why:
        raise RequestError(
            f"cannot write {flag} {path}: {why}; give a path in a folder that exists "
            "and can be written"
        )
    note_output(path, flag, force=force, extended=extended)


def _unwritable(path: Path) -> str:
    """Return why a path cannot be written; "" if it can."""
    parent = (Path(os.path.realpath(path)) if path.is_symlink() else path).parent
    try:
        kind = kind_of_file(path.stat().st_mode)
    except FileNotFoundError:
        if not parent.is_dir():
            return f"there is no folder {parent}"
    else:
        if is_stream(path):
            return "" if os.access(path, os.W_OK) else f"{kind} that takes nothing"
        if kind:
            return f"it is {kind}"
        if not os.access(path, os.W_OK):
            return "the file is write-protected"
    return "" if os.access(parent, os.W_OK) else f"the folder {parent} cannot be written"


def ensure_figure(path: Path | None, *, force: bool) -> None:
    """Refuse a figure's path before any work is done; :class:`RequestError` says why."""
    if path is not None:
        ensure_writable(path, force=force, flag="--plot")
        check_figure_path(path)


def file_of(output: Path | None) -> Path | None:
    """Return the file of ``--output``; None for stdout, which ``-`` names, too."""
    return None if str(output) == "-" else output


def format_of(path: Path | None) -> Format:
    """Return the format that a file's suffix names; tables by default."""
    return BY_SUFFIX.get(path.suffix.lower() if path else "", Format.TABLE)


@dataclass(frozen=True, kw_only=True)
class ToStdout:
    """Flags for how a result is written to stdout, where files have flags of their own."""

    fmt: FormatOption = Format.TABLE
    force: ForceOption = False
    exact: ExactOption = False

    def deliver(self, report: Report, **options: Any) -> None:
        """Write the report, to a file if one was named; ``options`` is for :func:`deliver`."""
        deliver(report, self.fmt, getattr(self, "output", None), exact=self.exact, **options)


@dataclass(frozen=True, kw_only=True)
class Output(ToStdout):
    """Flags for how a result is written, and where; a bad path is refused at once."""

    fmt: FileFormatOption = None  # type: ignore[assignment] # __post_init__ replaces None
    output: OutputOption = None

    def __post_init__(self) -> None:
        output = file_of(self.output)
        object.__setattr__(self, "output", output)
        object.__setattr__(self, "fmt", self.fmt or format_of(output))
        ensure_writable(output, force=self.force)


@dataclass(frozen=True, kw_only=True)
class DrawnOutput(Output):
    """Flags for a result that can also be drawn as a figure."""

    plot: PlotOption = None
    size: SizeOption = "page"

    def __post_init__(self) -> None:
        super().__post_init__()
        ensure_figure(self.plot, force=self.force)

    def deliver(self, report: Report, **options: Any) -> None:
        """Draw the report if asked, and write it, even if drawing fails."""
        try:
            if self.plot is not None:
                draw(report, self.plot, self.size)
                note(f"wrote {self.plot}")
        finally:
            super().deliver(report, **options)


def draw(report: Report, path: Path, size: str) -> None:
    """Draw a report; a terminal shows a line meanwhile."""
    with working(f"drawing {path}"):
        from attnprof.render.plots import plot_report

        plot_report(report, path, size)


@contextmanager
def answering() -> Iterator[None]:
    """Print the body's output to stdout as the answer; prints of user code go to stderr.

    A reader that leaves early (head) changes neither the exit code nor what is written to files.
    """
    supervision = sys.modules.get("attnprof.processes.supervision")
    try:
        with supervision.answering() if supervision else contextlib.nullcontext():
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        from attnprof.processes.supervision import give_up_answers

        give_up_answers()


def deliver(
    report: Report, fmt: str, output: Path | None, *, without: Sequence[str] = (), **options: Any
) -> None:  # fmt: skip
    """Write a report in a format, to stdout or a file; ``options`` is for its tables.

    ``without`` are fields that CSV and Markdown have no columns for.
    """
    from attnprof.render.formats import notes, print_tables, render

    if fmt == Format.TABLE and output is None:
        with answering():
            print_tables(report, **options)
    else:
        write(render(report, fmt, without=without, **options), output)
    if fmt == Format.TABLE:  # the other formats have them in the records
        for line in notes(report):
            note(line)


def write(text: str, output: Path | None) -> None:
    """Write to stdout, or to a file and say so."""
    if output is None:
        with answering():
            sys.stdout.write(text)
        return
    write_whole(output, text)
    note(f"wrote {output}")


@contextmanager
def working(text: str) -> Iterator[Progress]:
    """Show ``text`` on stderr while the body runs, or the progress that its code reports.

    What the body prints goes to stderr, too: prints of user code are no data. Inside another
    ``working`` the text is a step of its progress.
    """
    if (outer := waited_for()) is not None:
        with outer.saying(text):
            yield outer
        return
    progress = Progress(Step(text))
    with contextlib.redirect_stdout(sys.stderr), waiting(progress), display.shown(progress):
        yield progress
