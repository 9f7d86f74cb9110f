"""``attnprof derive``: closed forms from running code.

Derivations that took a while are kept, until a file or package that they depend on changes.
"""

import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from time import process_time
from typing import Annotated, Any

from typer import Argument, Option

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.request import parse_named_sizes, parse_set, some_of
from attnprof.errors import RequestError
from attnprof.record.files import JOURNAL_LIMIT, read_bytes, read_json, write_whole
from attnprof.record.report import Report
from attnprof.user_code import check_place, is_place
from attnprof.workload import PHASES

BY = ("operation", "line", "module")
ByOption = Annotated[str, Option(
    metavar="WHAT", callback=lambda value: opt.one_of(value, BY, "--by"),
    help="Where costs arise: by operation, line or module.",
)]  # fmt: skip
EXAMPLE = "attnprof derive my.py:MyAttention"


def derive(
    *,
    target: str | None = Argument(
        None, metavar="TARGET",
        help="path.py:Name, package.module:Name (a module class, a module, a function), "
        "or a mechanism of attnprof list.",
    ),
    modules: opt.Modules,
    phase: str | None = opt.flag(
        "PHASES", "Of forward, backward, train (both), decode.", show_default="forward,backward"
    ),
    at: list[str] | None = opt.flag(
        "SIZES", "Numbers, too, at a shape: B=1,N=4096,h=8,d=64; repeatable."
    ),
    quantity: opt.QuantityOption = None,
    scope: opt.OwnScopeOption = None,
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    settings: opt.SetOption = None,
    by: ByOption = "operation",
    latex: bool = opt.switch("--latex", "Show the formulas in LaTeX."),
    to: opt.Output,
) -> None:  # fmt: skip
    """Derive closed forms from your own torch code.

    TARGET is a module class, a module, a function or a mechanism. It runs on fake tensors of
    symbolic sizes, and of a few numbers where code insists on some; runs at other shapes check
    every formula. Arguments and inputs that you leave out are guessed, and the guesses printed.

    Examples:
      attnprof derive my.py:MyAttention
      attnprof derive my.py:MyAttention --at B=1,N=4096,h=8,d=64
      attnprof derive my.py:A --arg d_model=h*d --input "x: B, N, h*d" --by module
      attnprof derive linear --scope core --phase forward
    """
    if target is None:
        raise RequestError(f"derive needs what to derive: type {EXAMPLE}")
    (check_place if is_place(target) else registry.derivable)(target)
    phases = some_of(phase or "forward,backward", PHASES, "--phase")
    numbers = parse_named_sizes(at, "--at")
    options: dict[str, Any] = {
        "params": parse_set(settings), "scope": scope, "causal": causal, "dtype": dtype,
    }  # fmt: skip
    more = {"in_steps": to.fmt == opt.Format.MARKDOWN, "with_curves": to.fmt == opt.Format.HTML}
    texts = modules.args, modules.inputs, modules.config
    kept = KeptReport(target, texts, phase, numbers, quantity, options, more)
    report = kept.read()
    for line in kept.notes:
        opt.note(line)
    if report is None:
        derivation, report = _derived_report(
            target, modules, phases, numbers, forward_at_least=phase is None,
            quantity=quantity, notes=kept.notes, options=options, more=more,
        )  # fmt: skip
        if list(derivation.phases) == phases:  # else a note was printed that would be lost
            kept.write(report, modules.config)
    to.deliver(report, latex=latex, by=by)


def _derived_report(
    target: str, modules: Any, phases: list[str], numbers: Any, *, forward_at_least: bool,
    quantity: str | None, notes: list[str], options: Any, more: Any,
) -> tuple[Any, Report]:  # fmt: skip
    """Derive the target and return it with its report; guesses are noted."""
    from attnprof.trace.events import QUANTITIES
    from attnprof.trace.report.records import report_of
    from attnprof.trace.request.lookup import target_of

    with redirect_stdout(sys.stderr):  # prints of user code are no data
        quantities = some_of(quantity, QUANTITIES, "--quantity")
        with opt.working(f"calling {target}"):
            subject = target_of(target, modules.args, modules.inputs, **options)
        notes += subject.notes
        for line in notes:
            opt.note(line)
        with opt.working(f"deriving {target}: {', '.join(phases)}"):
            derivation = _derive_phases(subject, phases, numbers, forward_at_least=forward_at_least)
        import torch

        where = opt.environment(torch=torch.__version__)
        report = report_of(derivation, quantities, environment=where, **more, **options)
    return derivation, report


def _derive_phases(target: Any, phases: list[str], numbers: Any, *, forward_at_least: bool) -> Any:
    """Return the derivation; of the forward pass alone if the default phases cannot all run."""
    from attnprof.trace.solve.count import NoBackwardError
    from attnprof.trace.solve.derive import derived
    from attnprof.trace.solve.small_runs import ChanceError

    try:
        return derived(target, phases, numbers)
    except (NoBackwardError, ChanceError) as error:
        if not forward_at_least or not error.in_training:
            raise
        opt.note(f"only the forward pass: {str(error).rpartition(';')[0]}")
        return derived(target, ("forward",), numbers)


#: Processor seconds, torch's import included, from which on a derivation is kept.
_LONG = 6.0
#: Most bytes of all kept reports; the oldest are removed first.
_MOST = 2**26


class KeptReport:
    """A kept report of one request, with its notes for stderr and the code it depends on.

    It lies in the user's cache folder, and holds as long as packages have the same versions and
    other files the same content (compared by digest).
    """

    def __init__(self, *request: Any) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        name = sha256(repr((request, Path.cwd(), sys.version)).encode()).hexdigest()[:32]
        self.path = Path(base) / "attnprof" / "derived" / f"{name}.json"
        self.notes: list[str] = []
        self._start = process_time()

    def read(self) -> Report | None:
        """Return the report, and set ``notes``; None if it is not kept or has changed."""
        with suppress(OSError, ValueError, KeyError, TypeError, RequestError, PackageNotFoundError):
            kept = read_json(self.path, JOURNAL_LIMIT)
            packages = {name: version(name) for name in kept["packages"]}
            files = {name: _digest(name) for name in kept["files"]}
            if (packages, files) == (kept["packages"], kept["files"]):
                self.notes = list(kept["notes"])
                return Report.from_json(kept["report"], str(self.path))
        return None

    def write(self, report: Report, *files: Path | None) -> None:
        """Keep the report if it took long; it depends on modules loaded now and ``files``."""
        if process_time() - self._start < _LONG:
            return
        with suppress(OSError, RequestError, PackageNotFoundError):
            kept = {"notes": self.notes, **_dependencies(filter(None, files))}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**kept, "report": report.to_dict()})
            write_whole(self.path, text, owned=True)
            _remove_oldest(self.path.parent)


def _remove_oldest(folder: Path) -> None:
    """Remove a folder's oldest files until the rest has at most ``_MOST`` bytes."""
    total_bytes = 0
    for path in sorted(folder.iterdir(), key=lambda x: x.stat().st_mtime_ns, reverse=True):
        total_bytes += path.stat().st_size
        if total_bytes > _MOST:
            path.unlink()


def _digest(path: str) -> str:
    return sha256(read_bytes(path, JOURNAL_LIMIT)).hexdigest()


def _dependencies(paths: Any) -> Mapping[str, Mapping[str, str]]:
    """Return where loaded modules come from: packages by version; files and ``paths`` by digest."""
    files = {str(path.resolve()) for path in paths}
    packages, installed = set[str](), packages_distributions()
    standard_library = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not Path(path).is_file():
            continue
        if "site-packages" in Path(path).parts:
            packages.update(installed.get(name.partition(".")[0], ()))
        elif not path.startswith(standard_library):
            files.add(str(Path(path).resolve()))
    return {
        "packages": {name: version(name) for name in sorted(packages)},
        "files": {path: _digest(path) for path in sorted(files)},
    }
