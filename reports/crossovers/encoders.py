"""TaylorShift in whole encoders: memory by head count, and the lengths at which the forms meet.

Document 004's Table 6 and Figure 2 with the presets of its Table 7: bytes of the weights and of the
most that a forward pass holds beside them, counted in the models' own code, nothing measured. What
stands in ``encoders.csv`` and ``encoder_lengths.csv`` is not counted again::

    python reports/run.py crossovers/encoders
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rows import earlier, save, table

from attnprof.models import build, load
from attnprof.models.embeddings import input_texts
from attnprof.models.whole import WholeModel
from attnprof.trace.events import totals
from attnprof.trace.solve.count import count

#: Table 6 as it is printed: heads, and MiB of both forms; the batch and the length of its runs.
PRINTED = {1: (327, 2655), 2: (339, 1353), 4: (596, 840), 8: (1111, 585), 16: (2135, 459),
           32: (4187, 397), 64: (8291, 125)}  # fmt: skip
BATCH, TOKENS, MIB = 16, 1024, 2**20
FORMS = ("taylor-direct", "taylor-efficient")
#: Encoders of texts, whose length can change; Figure 2's has heads of this width.
ENCODERS, WIDTH, LONGEST = ("004-cifar-pixel", "004-imdb-byte", "004-listops"), 32, 4096

PAGE = """\
# TaylorShift in whole encoders

Counted in the code of the presets of document 004's Table 7, weights included; nothing is
measured. Written by `python reports/run.py crossovers/encoders`; the rows are in
[encoders.csv](encoders.csv) and [encoder_lengths.csv](encoder_lengths.csv).

## Table 6: memory by head count

CIFAR Pixel: one layer of 256, {TOKENS} tokens and a class token, batch {BATCH}; MiB. `2N²h·16·4`
are the two matrices of scores in float32; what the direct form holds beside them is the same at
every head count.

{heads}

## Figure 2: from which length on the efficient encoder needs less

Heads of width {WIDTH}, batch 1, float32. The document does not describe its encoder; it needs less
memory from 900 tokens on, and less time from 1800. Times are in [004](../papers/004/README.md).

{lengths}

The whole encoder of bytes over its length, by

```
attnprof crossover --model reports/crossovers/encoder.toml taylor-direct taylor-efficient \\
  --plot reports/crossovers/encoder.png --size column
```

![FLOPs and memory of both forms of the encoder, and where they are equal](encoder.png)
"""


@dataclass(frozen=True)
class Heads:
    """One head count: MiB of the direct form and of the efficient one in two formats."""

    heads: int
    direct_printed: int
    direct: float
    scores: float
    beside_scores: float
    efficient_printed: int
    efficient_float32: float
    efficient_float16: float


@dataclass(frozen=True)
class Lengths:
    """The first lengths from which the efficient encoder needs no more memory and FLOPs."""

    encoder: str
    memory: int
    flops: int


@cache
def costs(
    preset: str, form: str, heads: int, tokens: int, batch: int, dtype: str
) -> tuple[int, int]:
    """Bytes held at most, weights included, and FLOPs of a forward pass."""
    config = load(f"{preset}-{form}").with_(num_heads=heads, seq_len=LONGEST)
    model = WholeModel(preset, partial(build, config), input_texts(config), dtype=dtype)
    sizes = {"B": batch, "N": tokens}
    sums = totals(count(model.target(), sizes, "forward"), "forward")
    width = {"float32": 4, "float16": 2}[dtype]
    return sums["peak_bytes"] + width * sums["parameters"], sums["flops"]


def by_heads(heads: int) -> Heads:
    """A row of Table 6."""
    direct, efficient, half = (
        costs("004-cifar-pixel", form, heads, TOKENS, BATCH, dtype)[0] / MIB
        for form, dtype in ((FORMS[0], "float32"), (FORMS[1], "float32"), (FORMS[1], "float16"))
    )
    scores = 2 * (TOKENS + 1) ** 2 * heads * BATCH * 4 / MIB
    printed = PRINTED[heads]
    return Heads(heads, printed[0], direct, scores, direct - scores, printed[1], efficient, half)


def first(preset: str, metric: int) -> int:
    """The first length from which the efficient encoder needs no more: 0 bytes, 1 FLOPs."""
    heads = load(f"{preset}-{FORMS[0]}").d_model // WIDTH

    def is_less(tokens: int) -> bool:
        direct, efficient = (
            costs(preset, form, heads, tokens, 1, "float32")[metric] for form in FORMS
        )
        return efficient <= direct

    return bisect_left(range(LONGEST), True, lo=2, key=is_less)


def main() -> None:
    """Count what the tables lack, and write the page."""
    path = Path(__file__).with_suffix(".csv")
    rows = earlier(path, Heads) or [by_heads(heads) for heads in PRINTED]
    save(path, Heads, rows)
    path = path.with_name("encoder_lengths.csv")
    lengths = earlier(path, Lengths)
    lengths = lengths or [Lengths(name, first(name, 0), first(name, 1)) for name in ENCODERS]
    save(path, Lengths, lengths)
    heads = table(
        ">h | >direct, printed | >direct | >of it 2N²h·16·4 | >beside | >efficient, printed "
        "| >float32 | >float16",
        (
            (r.heads, f"{r.direct_printed:,}", f"{r.direct:,.1f}", f"{r.scores:,.1f}",
             f"{r.beside_scores:.1f}", f"{r.efficient_printed:,}", f"{r.efficient_float32:,.1f}",
             f"{r.efficient_float16:,.1f}")
            for r in rows
        ),
    )  # fmt: skip
    cells = ((each.encoder, f"{each.memory:,}", f"{each.flops:,}") for each in lengths)
    page = PAGE.format(
        heads="\n".join(heads), lengths="\n".join(table("encoder | >memory | >FLOPs", cells)),
        TOKENS=TOKENS, BATCH=BATCH, WIDTH=WIDTH,
    )  # fmt: skip
    Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")
