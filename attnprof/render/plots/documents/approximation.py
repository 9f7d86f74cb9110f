"""003's figures: growth by family, heads, projections, and the quoted results beside ours."""

from collections.abc import Mapping
from typing import Any

from attnprof.papers.regenerated import Values
from attnprof.render.plots import style
from attnprof.render.plots.documents import Rows, curve, drawing, of
from attnprof.render.plots.style import MIB, Axes, Figure
from attnprof.render.plots.ticks import length_axis, plain, with_prefix

#: Panels: the line's quantity, the points' quantity, divisor, axis label, title.
PANELS = (
    ("flops", "matmul_flops_counted", 1.0, "FLOPs", "operations"),
    ("peak_bytes", "peak_bytes_measured", float(MIB), "peak memory [MiB]", "memory"),
    (None, "median_s", 1e-3, "processor time [ms]", "time"),
)


def draw_family(figure: Figure, data: Values) -> str:
    """Draw operations, memory and time by length, standard attention in black."""
    panels = style.split(figure, 3)
    looks = style.looks([str(row["mechanism"]) for row in data["rows"]])
    for axes, (line, dots, unit, label, title) in zip(panels, PANELS, strict=True):
        for name, look in looks.items():
            rows = of(data["rows"], mechanism=name)
            if line:
                axes.plot(*curve(rows, line, unit), linewidth=1.1, **{**look, "marker": ""})
            _dots(axes, [row for row in rows if row[dots]], dots, unit, look)
        lengths = [row["seq_len"] for row in data["rows"] if row[line or dots]]
        length_axis(axes, lengths, plain if line != "flops" else with_prefix())
        axes.set(xlabel="sequence length N", ylabel=label, title=title)
    style.label_panels(panels)
    exponents = data["facts"]["exponents"]
    for name, look in looks.items():
        look["label"] = f"{name}: $N^{{{exponents[name]['flops']:.2f}}}$"
    style.legend(figure, list(looks.values()), handlelength=3)
    return (
        f"One head of width {data['facts']['head_dim']}, no projections. Lines: closed forms "
        "(exponent: of the operations). Points: products counted by torch, the allocator's peak, "
        "processor time on one thread with the 95 % interval of its median."
    )


def _dots(axes: Axes, rows: Rows, quantity: str, unit: float, look: Mapping[str, Any]) -> None:
    """Draw points; for times a line with their intervals."""
    lengths, values = curve(rows, quantity, unit)
    if quantity != "median_s":
        axes.plot(lengths, values, **{**look, "linestyle": "none"})
    elif rows:
        ends = [[abs(row["median_s"] - row[end]) / unit for row in rows]
                for end in ("ci_low_s", "ci_high_s")]  # fmt: skip
        axes.errorbar(lengths, values, ends, capsize=2, elinewidth=0.8, linewidth=0.8, **look)


def draw_projections(figure: Figure, data: Values) -> str:
    """Draw FLOPs of the three products, and of the attention that follows."""
    axes = figure.subplots()
    three = [{**row, "all": row["queries"] + row["keys"] + row["values"]} for row in data["rows"]]
    for field, shade, marker, label in (
        ("queries", style.SKY, "s", "one of Q, K, V: $N$"),
        ("all", style.BLUE, "o", "Q, K and V: $N$"),
        ("attention", "black", "^", "their attention: $N^2$"),
    ):
        axes.plot(*curve(three, field), color=shade, marker=marker, markersize=3, label=label)
    length_axis(axes, [row["seq_len"] for row in data["rows"]], with_prefix())
    axes.set(xlabel="sequence length N", ylabel="FLOPs")
    axes.legend(loc="upper left")
    return (
        f"Closed forms, width {data['facts']['d_model']}, one head. From "
        f"{data['facts']['attention_above_from']:,} tokens on, of those drawn, the attention costs "
        "more than the three products."
    )


def draw_heads(figure: Figure, data: Values) -> str:
    """Draw FLOPs of a layer by part, and its peak memory, by number of heads."""
    work, memory = style.split(figure, 2)
    names = [str(row["num_heads"]) for row in data["rows"]]
    below = [0.0] * len(names)
    parts = {"projections": style.SKY, "scores and values": style.BLUE, "softmax": style.VERMILION}
    for part, shade in parts.items():
        heights = [row[part] / 1e9 for row in data["rows"]]
        work.bar(names, heights, 0.6, below, color=shade, label=part,
                 hatch="///" * (part == "softmax"), edgecolor="white", linewidth=0)  # fmt: skip
        below = [a + b for a, b in zip(below, heights, strict=True)]
    figure.legend(loc="outside upper center", ncols=3)
    chosen = str(data["facts"]["printed"])
    shades = [style.GREEN if name == chosen else "0.75" for name in names]
    memory.bar(names, [row["peak_bytes"] / MIB for row in data["rows"]], 0.6, color=shades)
    for axes, label in ((work, "GFLOPs of a layer"), (memory, "peak memory [MiB]")):
        axes.set(xlabel="number of heads H", ylabel=label)
        axes.grid(visible=True, axis="y")
    style.label_panels([work, memory])
    return (
        f"Closed forms, {data['facts']['seq_len']:,} tokens, width {data['facts']['d_model']}. "
        f"Dark: the H = {chosen} that is drawn in the document."
    )


def draw_results(figure: Figure, data: Values) -> str:
    """Draw losses, ratios and seconds: printed ones hatched, ours plain."""
    losses, ratios, times = style.split(figure, 3)
    printed: dict[str, Any] = {"color": style.ORANGE, "hatch": "//"}
    _bars(losses, data["rows"], "final_true_ce", **printed)
    guess = data["facts"]["uniform_guess"]
    losses.axhline(guess, color="black", linestyle=":", linewidth=0.9)
    losses.text(0.98, guess, "all tokens alike ", va="bottom", ha="right", fontsize=style.SMALL,
                transform=losses.get_yaxis_transform())  # fmt: skip
    losses.set_ylabel("final cross-entropy [nats]")
    _bars(ratios, data["rows"], "generalization_ratio", **printed)
    for place, row in enumerate(data["rows"]):
        if row["failed"]:
            ratios.text(place, 0.02, "failed", rotation=90, va="bottom", ha="center",
                        fontsize=style.SMALL)  # fmt: skip
    ratios.set_ylabel("test error / training error")
    _bars(times, data["rows"], "relative_printed", shift=-0.2, label="printed", **printed)
    _bars(times, data["rows"], "relative", shift=0.2, label="measured here", color=style.BLUE)
    times.set_ylabel("forward pass, Performer = 1")
    style.label_panels([losses, ratios, times])
    figure.legend(*times.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return (
        "Printed values as far as the text quotes them (its device is not named); a missing bar "
        "was not quoted. (b): smaller is better. (c) measured: processor time of one sequence on "
        "one thread, from the parts of each model."
    )


def _bars(axes: Axes, rows: Rows, quantity: str, *, shift: float = 0.0, **look: Any) -> None:
    values = [(place, row[quantity]) for place, row in enumerate(rows) if row[quantity] is not None]
    places, heights = [place + shift for place, _ in values], [value for _, value in values]
    axes.bar(places, heights, 0.4 if shift else 0.6, edgecolor="white", **look)
    axes.set_xticks(range(len(rows)), [str(row["model"]) for row in rows], rotation=30, ha="right")
    axes.set_xlim(-0.6, len(rows) - 0.4)


DRAWINGS = {
    **dict.fromkeys("DEFG", drawing(2.4, draw_family)), "B": drawing(2.6, draw_projections),
    "C": drawing(2.6, draw_heads), "Z": drawing(2.7, draw_results),
}  # fmt: skip
