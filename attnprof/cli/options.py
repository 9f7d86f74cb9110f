"""The flags that commands share, as ``Annotated`` types for Typer.

List-valued flags arrive as text and are read by :mod:`attnprof.cli.sizes`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from attnprof.errors import RequestError


class Format(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def _device(text: str) -> str:
    """A device's name as it is; whether it is there shows when it is used."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise RequestError(f"unknown device '{text}': possible are auto, cpu, cuda and cuda:1")
    return text


_SIZES = "a size, a list 128,256 or a range 128:16384:x2, 100:1000:+100"

_ATTENTION = Option("--attention", "-a", metavar="NAMES", help="Mechanisms, separated by commas.")
_SEQ = Option("--seq", metavar="SIZES", help=f"Sequence length: {_SIZES}.")

AttentionOption = Annotated[str | None, _ATTENTION]
AttentionsOption = Annotated[str, _ATTENTION]  # where the command has a default
SeqOption = Annotated[str | None, _SEQ]
SeqsOption = Annotated[str, _SEQ]
DModelOption = Annotated[
    str | None, Option("--d-model", metavar="SIZE", help="Model width (default 512).")
]
HeadsOption = Annotated[
    str | None, Option("--heads", metavar="SIZE", help="Number of heads (default 8).")
]
BatchOption = Annotated[str, Option("--batch", metavar="SIZE", help="Batch size.")]
HeadDimOption = Annotated[
    str | None, Option("--d", metavar="SIZE", help="Head width; otherwise d_model / heads.")
]
KvHeadsOption = Annotated[
    str | None, Option("--kv-heads", metavar="SIZE", help="Grouped key and value heads.")
]
KvSeqOption = Annotated[
    str | None, Option("--kv-seq", metavar="SIZE", help="Key length, for cross-attention.")
]
ScopeOption = Annotated[
    str,
    Option(
        "--scope", metavar="SCOPE", help="core (after q, k, v exist) or layer (with projections)."
    ),
]
CrossoverScopeOption = Annotated[
    str | None,
    Option("--scope", metavar="SCOPE", help="core (default; layer beside a module) or layer."),
]
PhaseOption = Annotated[
    str,
    Option(
        "--phase",
        metavar="PHASE",
        help="forward, prefill (causal forward), backward, train or decode.",
    ),
]
KindOption = Annotated[
    str | None, Option("--kind", metavar="KINDS", help="published, formula, derived or measured.")
]
QuantityOption = Annotated[
    str | None, Option("--quantity", metavar="NAMES", help="Quantities, separated by commas.")
]
ConventionOption = Annotated[
    str,
    Option(
        "--convention",
        metavar="NAME",
        help="flops (what the code executes) or operations (the definition, k-1 additions a dot).",
    ),
]
CausalOption = Annotated[
    bool, Option("--causal/--no-causal", help="Token t attends to tokens 1 to t.")
]
DtypeOption = Annotated[
    str,
    Option(
        "--dtype",
        metavar="DTYPE",
        help="float64, float32, bfloat16 or float16; sets bytes per element.",
    ),
]
DeviceOption = Annotated[
    str,
    Option(
        "--device",
        metavar="DEVICE",
        help="auto (CUDA if there is one), cpu, cuda or cuda:1.",
        callback=_device,
    ),
]
SetOption = Annotated[
    list[str] | None,
    Option("--set", metavar="K=V", help="A mechanism's parameter, like bias=false; repeatable."),
]
ArgOption = Annotated[
    list[str] | None,
    Option("--arg", metavar="NAME=EXPR", help="A module's argument, like d_model=h*d."),
]
InputOption = Annotated[
    list[str] | None,
    Option("--input", metavar="'NAME: DIMS'", help="A module's input, like 'x: B, N, h*d'."),
]
FormatOption = Annotated[Format, Option("--format", "-f", help="How to write the result.")]
OutputOption = Annotated[
    Path | None,
    Option("--output", "-o", metavar="FILE", help="Write to a file instead of stdout."),
]
ForceOption = Annotated[
    bool, Option("--force", help="Overwrite files that attnprof did not write, too; never inputs.")
]
PlotOption = Annotated[
    Path | None, Option("--plot", metavar="FILE", help="Draw it, too: PNG, SVG or PDF.")
]
#: crossover and heads take several head widths or counts, and few of the others' defaults
HeadDimsOption = Annotated[
    str, Option("--d", metavar="SIZES", help="Head widths: a list 8,16 or a range 8:128:x2.")
]
HeadCountOption = Annotated[str, Option("--heads", metavar="SIZE", help="Number of heads.")]
HeadCountsOption = Annotated[
    str, Option("--heads", metavar="SIZES", help="Head counts, a panel each.")
]
DModelsOption = Annotated[
    str, Option("--d-model", metavar="SIZES", help="Model widths: a list or a range.")
]
MetricOption = Annotated[
    str | None, Option("--metric", metavar="NAMES", help="flops, memory or both.")
]
#: heatmap: what depends on the kind or on a file's suffix where nothing is asked
HeatmapScopeOption = Annotated[
    str | None, Option("--scope", metavar="SCOPE", help="core or layer; formula default: layer.")
]
HeatmapFormatOption = Annotated[
    Format | None, Option("--format", "-f", help="How to write the result (default table).")
]
HeatmapOutputOption = Annotated[
    Path | None,
    Option("--output", "-o", metavar="FILE", help="Write data, or a figure, to a file."),
]
FigureBesideOption = Annotated[
    Path | None,
    Option("--plot", metavar="FILE", help="Figure (.png, .svg, .pdf), its CSV beside it."),
]
