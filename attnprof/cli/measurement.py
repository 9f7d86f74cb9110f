"""The flags of measuring commands: which points, of a grid or a suite of cases, and how.

:class:`Points` makes a grid of flags, :func:`grid_of` one of a table in a TOML file, and
:class:`Suite` makes cases of either. Messages name the flag or the place in the file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from attnprof.arguments import MOST_THREADS, shown
from attnprof.cli import options as opt
from attnprof.cli.parameters import NAMES as POSSIBLE
from attnprof.cli.request import MOST, parse_names, parse_set, parse_sizes
from attnprof.errors import RequestError, closest
from attnprof.record.files import near_file, read_toml, refusal
from attnprof.record.recognition import take_modules

if TYPE_CHECKING:
    from attnprof.gate.counts import Case
    from attnprof.measure.sweep import Grid

THREADS: Any = opt.whole(None, "--threads", "Compute threads (default: torch's).", 1, MOST_THREADS)
WAIT_POLICY: Any = opt.flag(
    "NAME", "How compute threads wait for each other: default (as in any torch program), passive "
    "(asleep) or active (spinning).",
    "--wait-policy", default="default",
)  # fmt: skip
KEPT: Any = opt.switch("--kept", "As where freed memory stays with the process: no page faults.")


def calibrated(path: Path | None) -> Path | None:
    """Return the path of a file that is there, or None; its content is read with torch loaded."""
    if path is not None and not path.exists():
        how = f"type attnprof calibrate --calibration {quote(str(path))}"
        hint = "; ".join(filter(None, (near_file(path), how)))
        raise refusal(path, "there is no such file", hint)
    return path


CALIBRATION: Any = opt.flag(
    "FILE", "What calibrate wrote (default: the cache folder's).", "--calibration",
    callback=calibrated,
)  # fmt: skip
ON: Any = opt.flag(
    "NAME", "A device that is not here, like H100, by its calibration; or else a lower bound from "
    "its maker's figures.", "--on", callback=opt.device_name,
)  # fmt: skip


def set_wait_policy(name: str) -> None:
    """Set how OpenMP's threads wait for each other, before torch is imported and reads it.

    ``default`` leaves it as in the user's own programs, so that times are like theirs.
    """
    policies = ("default", "passive", "active")
    if name.lower() not in policies:
        raise RequestError(f"--wait-policy {name}: possible are {', '.join(policies)}")
    if name.lower() != "default":
        os.environ["OMP_WAIT_POLICY"] = name.upper()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Flags for how a point is measured: number of samples, seconds, seed, threads."""

    samples: int = opt.flag("N", "Times to take, if --max-time allows.", default=20)
    min_time: float = opt.flag("SECONDS", "Time a point at least this long.", default=0.5)
    max_time: float = opt.flag("SECONDS", "Time a point at most this long.", default=5.0)
    spread: float = opt.flag("SHARE", "Stop when the median is known this well.", default=0.05)
    seed: int = opt.whole(0, "--seed", "Seed of weights and inputs.", 0, 2**63 - 1)
    threads: int | None = THREADS
    wait_policy: str = WAIT_POLICY
    check: bool = opt.switch(
        "--check/--no-check", "See first whether a mechanism computes what it claims.", default=True
    )
    compiled: bool = opt.switch("--compile", "Measure what torch.compile makes of it.")

    def terms(self) -> dict[str, Any]:
        """Return the fields of every point's request: its budget, and how it is run."""
        from attnprof.measure.request import Budget

        budget = Budget(self.samples, self.min_time, self.max_time, spread=self.spread)
        names = ("seed", "threads", "check", "compiled")
        return {"budget": budget, **{name: getattr(self, name) for name in names}}


#: Keys of a grid, as flags and in a file: sizes, and names.
SIZES = {"seq": "seq_len", "d_model": "d_model", "heads": "num_heads", "batch": "batch_size"}
NAMES = ("attention", "scope", "dtype", "phase", "device")
LISTS = {"settings": "set", "args": "arg", "inputs": "input"}
#: Keys of a case that a grid does not have.
CASE_KEYS = ("rule", "time", "formula", "compile")
_EXAMPLES = {
    "grid": 'grid = [{attention = ["standard", "linear"], seq = "128:4096:x2"}]',
    "case": 'case = [{attention = "my.py:MyAttention", seq = 512, phase = ["forward", "train"]}]',
}


@dataclass(frozen=True, kw_only=True)
class Points(opt.Modules):
    """Options for a grid: lists of values where other commands take one."""

    attention: opt.AttentionOption = None
    seq: opt.SeqOption = None
    d_model: str | None = opt.flag("SIZES", "Model widths (default 512).")
    heads: str | None = opt.flag("SIZES", "Head counts (default 8).")
    batch: str | None = opt.flag("SIZES", "Batch sizes (default 1).")
    phase: str | None = opt.flag("NAMES", "Phases (default forward).")
    dtype: str | None = opt.flag("NAMES", "Number formats (default float32).")
    device: str | None = opt.flag("NAMES", "Devices: cpu,cuda:0 (default auto).")
    settings: opt.SetOption = None

    def texts(self) -> dict[str, str]:
        """Return the typed texts of sizes and names, by field."""
        texts = {key: getattr(self, key, None) for key in (*SIZES, *NAMES)}
        return {key: text for key, text in texts.items() if text is not None}

    def flags(self) -> list[str]:
        """Return the flags that were typed."""
        lists = [f"--{flag}" for name, flag in LISTS.items() if getattr(self, name)]
        return [*map(_flag, self.texts()), *lists]

    def need(self, command: str, instead: str) -> None:
        """Raise RequestError if mechanisms or lengths are missing; ``instead`` is what to type."""
        for key in ("attention", "seq"):
            if getattr(self, key) is None:
                raise RequestError(f"{command} needs --{key} {instead}")

    def grid(self, causal: str = "no") -> "Grid":
        """Return the grid; a ``--set`` value may be a list: ``window=64,128``."""
        masks = {"no": [False], "yes": [True], "both": [False, True]}
        if causal not in masks:
            raise RequestError(f"--causal {causal}: possible are no, yes and both")
        settings = {name: value.split(",") for name, value in parse_set(self.settings).items()}
        lists = {"set": settings, "arg": self.args or [], "input": self.inputs or []}
        table = {**self.texts(), **lists, "causal": masks[causal]}
        return grid_of(table, "the grid", name_of=_flag)


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def grids_from_file(path: Path) -> "list[Grid]":
    """Return the ``[[grid]]`` tables of a TOML file; RequestError names the place."""
    return [grid_of(table, where) for table, where in tables_of(path, "grid")]


def tables_of(path: Path, name: str) -> list[tuple[Mapping[str, Any], str]]:
    """Return the ``[[name]]`` tables of a TOML file, each with its place for messages."""
    tables = read_toml(path).get(name)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        tables = []
    if not tables:
        raise RequestError(f"{path} has no {name}; write one like {_EXAMPLES[name]}")
    return [(table, f"{path}, {name} {number}") for number, table in enumerate(tables, 1)]


def grid_of(
    table: Mapping[str, Any], where: str, more: Sequence[str] = (),
    name_of: Callable[[str], str] | None = None,
) -> "Grid":  # fmt: skip
    """Return one table as a grid; keys in ``more`` are left to the caller.

    ``name_of`` is how messages name a key, by default by its place.
    """
    from attnprof.measure.sweep import Grid

    name_of = name_of or (lambda key: f"{where}: {key}")
    keys = [*SIZES, *NAMES, "causal", *LISTS.values(), *more]
    for key in table:
        if key not in keys:
            raise RequestError(f"{where}: unknown key '{key}': {closest(key, keys)}")
    for key in ("attention", "seq"):
        if key not in table:
            raise RequestError(f"{where} needs {key}; write a grid like {_EXAMPLES['grid']}")
    axes: dict[str, Any] = {}
    for key in (*SIZES, *NAMES):
        if key in table:
            text = ",".join(map(str, _as_list(table[key], name_of(key))))
            axes[SIZES.get(key, key)] = _axis(key, text, name_of(key))
    causal = _as_list(table.get("causal", False), name_of("causal"), (bool,), "true or false")
    settings = table.get("set", {})
    if not isinstance(settings, dict):
        place = f"{name_of('set')} = {shown(settings)}"
        raise RequestError(f"{place}: write names and values, like {{window=64}}")
    params = {
        name: list(map(str, _as_list(value, f"{name_of('set')} {name}")))
        for name, value in settings.items()
    }
    args, inputs = (_as_list(table.get(key, []), name_of(key), (str,), "texts")
                    for key in ("arg", "input"))  # fmt: skip
    grid = Grid(**axes, causal=causal, params=params, args=args, inputs=inputs)
    axes_of = (grid.attention, grid.seq_len, grid.d_model, grid.num_heads, grid.batch_size,
               grid.dtype, grid.phase, grid.device, grid.causal, grid.scope)  # fmt: skip
    count = prod(len(axis) for axis in (*axes_of, *grid.params.values()))
    if count > MOST:
        raise RequestError(
            f"{where}: {count:,} points, {MOST:,} are taken at most: type fewer values, or larger "
            "steps like 128:16384:x2"
        )
    take_modules(grid.attention)
    return grid


def _axis(key: str, text: str, where: str) -> Sequence[Any]:
    """Return the sizes or names of a grid's axis."""
    if key in SIZES:
        return parse_sizes(text, where)
    possible = POSSIBLE.get(key)
    if possible is None:  # mechanisms
        return parse_names(text, where)
    names = possible[""] if isinstance(possible, dict) else possible
    return parse_names(text, where, f"possible: {', '.join(names)}")


def _as_list(
    value: Any, where: str, kinds: tuple[type, ...] = (str, int, float, bool),
    words: str = "texts or numbers",
) -> list[Any]:  # fmt: skip
    """Return a value of these kinds, or a list of such, as a list; ``words`` name the kinds."""
    items = list(value) if isinstance(value, list) else [value]
    if not all(isinstance(item, kinds) for item in items):
        raise RequestError(f"{where} = {shown(value)}: write {words}, one or a list of them")
    return items


@dataclass(frozen=True, kw_only=True)
class Suite(Points):
    """Flags for the cases that are checked, and whether they are timed and derived."""

    suite: Path | None = opt.flag(
        "FILE", r"TOML with \[\[case]] tables (default: a suite of ours)."
    )
    time: bool = opt.switch(
        "--time/--no-time", "Take times, too, or only exact counts.", default=True
    )
    formula: bool = opt.switch(
        "--formula/--no-formula", "Derive closed forms, too, of cases that want it.", default=True
    )
    limit: float | None = opt.flag(
        "SECONDS", "End a case that takes longer than this (default 300)."
    )

    def cases(self) -> "list[Case]":
        """Return the cases of the file, of the flags, or of the built-in suite."""
        flags = self.flags()
        if self.suite is not None:
            if flags:
                raise RequestError(
                    f"--suite {self.suite} says which cases; leave out {', '.join(flags)}"
                )
            return suite_from_file(self.suite, self.limit)
        if not flags:
            import attnprof.gate

            return suite_from_file(Path(attnprof.gate.__file__).with_name("suite.toml"))
        self.need("without --suite, this command", "too")
        return _cases(self.grid(), self.limit)


def suite_from_file(path: Path, limit_s: float | None = None) -> "list[Case]":
    """Return the cases of the ``[[case]]`` tables: all combinations of a table's lists.

    ``rule``, ``time``, ``formula`` and ``compile`` belong to all cases of a table. Raises
    :class:`RequestError`, naming the place.
    """
    from attnprof.gate.rules import rule_named

    cases: list[Case] = []
    for table, where in tables_of(path, "case"):
        grid = grid_of(table, where, CASE_KEYS)
        for key in CASE_KEYS[1:]:
            if not isinstance(table.get(key, True), bool):
                raise RequestError(f"{where}: {key} = {table[key]!r}: write true or false")
        rule = str(table.get("rule", "default"))
        try:
            rule_named(rule)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from error
        cases += _cases(
            grid, limit_s, rule=rule, timed=table.get("time", True),
            formulas=table.get("formula", True), compiled=table.get("compile", False),
        )  # fmt: skip
    return cases


def _cases(
    grid: Any, limit_s: float | None, *, compiled: bool = False, **options: Any
) -> "list[Case]":
    from attnprof.gate.counts import Case
    from attnprof.measure.request import Budget
    from attnprof.measure.sweep import points_of

    points = points_of([grid], Budget(), threads=1, check=False, compiled=compiled, limit_s=limit_s)
    return [Case(point, **options) for point in points]
