"""The flags that commands share: ``Annotated`` types for Typer, and groups of them.

A group is a dataclass whose fields are flags. A command takes it as one parameter, and
:func:`in_groups` shows Typer the fields. List-valued flags arrive as text and are read by
:mod:`attnprof.cli.request`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from attnprof.errors import RequestError, closest
from attnprof.workload import DTYPES, SCOPES


class Format(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def in_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the fields of its groups for parameters, each group where it stands."""
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, set[str]]] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        group: Any = parameter.annotation
        if not is_dataclass(group):
            plain.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        groups[name] = group, {field.name for field in fields(group)}
        plain += [
            parameter.replace(name=field.name, annotation=hints[field.name], default=field.default)
            for field in fields(group)
        ]

    @wraps(function)
    def run(**given: Any) -> Any:
        made = {
            name: group(**{field: given.pop(field) for field in own})
            for name, (group, own) in groups.items()
        }
        return function(**given, **made)

    run.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined] # as inspect reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in plain}
    return run


def one_of(value: str, possible: Sequence[str], flag: str) -> str:
    """The value, or :class:`RequestError` with what is possible."""
    if value not in possible:
        what = flag.removeprefix("--").replace("-", " ")
        raise RequestError(f"{flag} {value}: unknown {what}; {closest(value, list(possible))}")
    return value


def _among(flag: str, possible: Sequence[str]) -> Callable[[str | None], str | None]:
    """A flag's callback: its value is one of these, where it has one."""
    return lambda value: value if value is None else one_of(value, possible, flag)


def scope(words: str) -> Any:
    """A ``--scope``, with ``words`` for its help."""
    return Option(metavar="SCOPE", callback=_among("--scope", SCOPES), help=words)


def _device(text: str) -> str:
    """A device's name as it is; whether it is there shows when it is used."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise RequestError(f"unknown device '{text}': possible are auto, cpu, cuda and cuda:1")
    return text


_SIZES = "a size, a list 128,256 or a range 128:16384:x2, 100:1000:+100"

AttentionOption = Annotated[
    str | None,
    Option("--attention", "-a", metavar="NAMES", help="Mechanisms, separated by commas."),
]
SeqOption = Annotated[str | None, Option(metavar="SIZES", help=f"Sequence length: {_SIZES}.")]
BatchOption = Annotated[str, Option(metavar="SIZE", help="Batch size.")]
ScopeOption = Annotated[str, scope("core (after q, k, v exist) or layer (with projections).")]
OwnScopeOption = Annotated[str | None, scope("core (default; layer beside a module) or layer.")]
PhaseOption = Annotated[
    str,
    Option(metavar="PHASE", help="forward, prefill (causal forward), backward, train or decode."),
]
KindOption = Annotated[
    str | None, Option(metavar="KINDS", help="published, formula, derived or measured.")
]
QuantityOption = Annotated[
    str | None, Option(metavar="NAMES", help="Quantities, separated by commas.")
]
ConventionOption = Annotated[str, Option(
    metavar="NAME", callback=_among("--convention", ("flops", "operations")),
    help="flops (what the code executes) or operations (the definition, k-1 additions a dot).",
)]  # fmt: skip
CausalOption = Annotated[
    bool, Option("--causal/--no-causal", help="Token t attends to tokens 1 to t.")
]
DtypeOption = Annotated[str, Option(
    metavar="DTYPE", callback=_among("--dtype", DTYPES),
    help="float64, float32, bfloat16 or float16; sets bytes per element.",
)]  # fmt: skip
DeviceOption = Annotated[str, Option(
    metavar="DEVICE", callback=_device,
    help="auto (CUDA if there is one), cpu, cuda or cuda:1.",
)]  # fmt: skip
SetOption = Annotated[
    list[str] | None,
    Option("--set", metavar="K=V", help="A mechanism's parameter, like bias=false; repeatable."),
]
FormatOption = Annotated[Format, Option("--format", "-f", help="How to write the result.")]
OutputOption = Annotated[
    Path | None,
    Option("--output", "-o", metavar="FILE", help="Write to a file instead of stdout."),
]
ForceOption = Annotated[
    bool, Option("--force", help="Overwrite files that attnprof did not write, too; never inputs.")
]
PlotOption = Annotated[Path | None, Option(metavar="FILE", help="Draw it, too: PNG, SVG or PDF.")]


@dataclass(frozen=True, kw_only=True)
class Modules:
    """How modules of somebody's own are made and called."""

    args: list[str] | None = Option(
        None, "--arg", metavar="NAME=EXPR", help="A module's argument, like d_model=h*d."
    )
    inputs: list[str] | None = Option(
        None, "--input", metavar="'NAME: DIMS'", help="A module's input, like 'x: B, N, h*d'."
    )
