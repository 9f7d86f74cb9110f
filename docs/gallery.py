"""Draws every kind of figure and writes docs/gallery.md: python docs/gallery.py."""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from attnprof.cli.app import main

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "gallery.md"
#: Drawn for the README, too.
SHARED = ("compare.png", "crossover.png", "heatmap.png")


#: Bytes of a figure.
LARGEST = 60_000


class Figure(NamedTuple):
    """What a figure shows, and the command that draws it; its name is the last word."""

    shows: str
    command: str

    @property
    def file(self) -> str:
        """Where it lies, seen from this folder."""
        name = next(word for word in self.command.split() if word.endswith(".png"))
        return name if name in SHARED else f"gallery/{name}"


PLOT = "attnprof plot sweep.jsonl"
PARTS = {
    "Closed forms": (
        Figure("FLOPs and peak memory of several mechanisms over sequence length.",
               "attnprof compare -a standard,sdpa,linear --seq 1024:131072:x2 --plot compare.png"),
        Figure("The same as wide as one of two columns: every figure takes `--size column`.",
               "attnprof compare -a standard,sdpa,linear --seq 1024:131072:x2 --size column "
               "--plot compare_column.png"),
        Figure("Bytes that a rank sends in a layer, where ranks share ten million tokens: a ring's "
               "do not shrink with the number of ranks, a state's do not grow with the tokens.",
               "attnprof cost -a gqa,gated-deltanet --set num_kv_heads=8 --causal --seq 10000000 "
               "--heads 32 --d 128 --dtype bfloat16 --ranks 2:1024:x2 --plot ranks.png"),
        Figure("Two costs over sequence length, a panel a head width: where they meet is marked "
               "and named, and below them is their ratio.",
               "attnprof crossover --d 16,32,64 --plot crossover.png"),
        Figure("Costs over the number of heads at one model width, with the optimum.",
               "attnprof heads --d-model 256 --seq 1025 --plot optimum.png"),
        Figure("The ratio of two costs over sequence length and model width, a panel a number of "
               "heads. It is drawn without being asked for, beside its cells as CSV.",
               "attnprof heatmap standard efficient --plot heatmap.png"),
        Figure("Where each of the two wins somewhere, the colours have two sides.",
               "attnprof heatmap taylor-direct taylor-efficient --kind formula --phase forward "
               "--seq 64:16384:x2 --d-model 64:1024:x2 --heads 4,8 --plot two_sided.png"),
    ),
    "Results of a sweep": (
        Figure("Median time and peak memory over sequence length, a column a combination of "
               "widths and numbers of heads.", f"{PLOT} --kind growth -o growth.png"),
        Figure("FLOPs over sequence length and model width, against the first mechanism's.",
               f"{PLOT} --kind surface -o surface.png"),
        Figure("The FLOPs themselves.", f"{PLOT} --kind surface3d -o surface3d.png"),
        Figure("FLOPs over the model width.", f"{PLOT} --kind width -o width.png"),
        Figure("FLOPs, time and memory over the number of heads.",
               f"{PLOT} --kind heads --where d_model=64 -o heads.png"),
        Figure("What was achieved, under the ceilings of the device that `attnprof calibrate "
               "--calibration ceilings.json` measured.",
               f"{PLOT} --kind roofline --ceilings ceilings.json -o roofline.png"),
        Figure("How far the output is from softmax attention's, over time.",
               f"{PLOT} --kind pareto --where seq_len=1024 -o pareto.png"),
    ),
    "Over time": (
        Figure("Results of `attnprof check` or `baseline` of many commits, and where their level "
               "changed.", "attnprof history results --plot history.png"),
    ),
    "Figures of the papers, made again": (
        Figure("The four mechanisms of Better Attention as diagrams.",
               "attnprof reproduce 000 --figure 1 --plot diagrams.png"),
        Figure("One of Extractors' sublayers; its critical path is filled.",
               "attnprof reproduce 002 --figure 2 --plot sublayer.png"),
        Figure("TaylorShift's crossovers, predicted and measured.",
               "attnprof reproduce 004 --figure 1 --plot taylorshift.png"),
    ),
}  # fmt: skip
HEAD = """# Figures

Every kind of figure that attnprof draws, with the command that draws it. All of them are written
as PNG, SVG or PDF, by the name of the file, and are 7 inches wide or, with `--size column`, 3.3.
None is higher than a page: of more panels than fit there, the command says which to leave out.
No text but indices is smaller than 7 points, and lines differ in more than colour.

Made by `python docs/gallery.py`, with fewer colours than the commands' own files have.
`sweep.jsonl` is [a small sweep](../tests/render/data/factorial.jsonl) of five mechanisms at three
sequence lengths, two model widths and two numbers of heads:

```console
attnprof sweep --attention standard,sdpa,linear,efficient,taylor-efficient --seq 64,256,1024 \\
  --d-model 32,64 --heads 2,4 --error --memory-limit 16MiB -o sweep.jsonl
```
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *("\n".join(_part(*part)) for part in PARTS.items())])


def _part(title: str, figures: tuple[Figure, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    for figure in figures:
        yield f"{figure.shows}\n\n```console\n{figure.command}\n```\n"
        yield f"![{figure.shows}]({figure.file})\n"


def draw() -> None:
    """All figures, in few colours."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.gate.test_history import save, times

    shutil.copy(DOCS.parent / "tests/render/data/factorial.jsonl", "sweep.jsonl")
    results = Path("results")
    results.mkdir()
    for run, value in enumerate(times(5, 20, 10)):
        save(results, f"run{run:02}.json", value, 100 if run < 15 else 130, git=f"c{run:06}")
    _run("attnprof calibrate --seconds 0.05 --calibration ceilings.json")
    for figure in (figure for part in PARTS.values() for figure in part):
        _run(figure.command)
        place = DOCS / figure.file
        place.parent.mkdir(exist_ok=True)
        with Image.open(place.name) as image:
            whole = image.convert("RGB")
        for colours in (256, 128, 64, 32, 24):  # as many as a small file holds
            whole.quantize(colours, dither=Image.Dither.NONE).save(place, optimize=True)
            if place.stat().st_size < LARGEST:
                break


def _run(command: str) -> None:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(shlex.split(command)[1:])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        draw()
    PAGE.write_text(page(), encoding="utf-8")
