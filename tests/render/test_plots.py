"""Figures: right file types, repeatable bytes, every curve and crossover drawn."""

import re
from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnprof import Workload, registry
from attnprof.closed_form.cost_records import compare_records
from attnprof.crossovers.sides import ALL_METRICS, COUNTED_AS, ratios
from attnprof.errors import RequestError
from attnprof.record import CrossoverRecord, HeadsRecord, HeatmapRecord, HistoryRecord, Report
from attnprof.render.plots import plot_report, ticks
from attnprof.render.plots.curves import draw_compare, draw_crossover, draw_heads, draw_history
from attnprof.render.plots.heatmap import Scale, draw_cells, draw_heatmap, size_ticks
from attnprof.render.plots.models import draw_model
from attnprof.render.plots.style import HEIGHT, PALETTE, WIDTHS, check_figure_path, looks, styled

LENGTHS = [2**i for i in range(4, 12)]
MEETINGS = {16: 272.5, 32: 1056.5}


def crossover_report(widths=(16, 32), metrics=(("flops", "flops"), ("memory", "entries"))):
    records, curves = [], []
    for d in widths:
        for metric, unit in metrics:
            for kind in ("published", "formula"):
                for name, power in (("taylor-direct", 2), ("taylor-efficient", 1)):
                    value = [n**power * MEETINGS.get(d, 100.0) ** (2 - power) for n in LENGTHS]
                    curves.append(
                        {"metric": metric, "unit": unit, "kind": kind, "mechanism": name,
                         "head_dim": d, "seq_len": LENGTHS, "value": value}
                    )  # fmt: skip
                meets = MEETINGS.get(d)
                records.append(
                    CrossoverRecord(
                        metric=metric, unit=unit, kind=kind, source=None, head_dim=d,
                        mechanism_a="taylor-direct", mechanism_b="taylor-efficient", scope="core",
                        phase="forward", causal=False, verdict="crosses" if meets else "never",
                        crossover_seq_len=meets, all_crossings=[meets] * bool(meets),
                    )
                )  # fmt: skip
    return Report("crossover", records, {"curves": curves, "ratios": ratios(curves)})


def heads_report(optimum=547.8):
    records = [
        HeadsRecord(
            mechanism=name, num_heads=h, head_dim=256 // h, quantity=quantity, kind="formula",
            source=None, value=1000 * h**power,
        )
        for name, power in (("taylor-direct", 1), ("taylor-efficient", -1))
        for quantity in ("flops", "peak_entries")
        for h in (1, 2, 4, 8)
    ]  # fmt: skip
    return Report("heads", records, {"optimum_num_heads": optimum, "optimum_head_dim": 0.467297})


def heatmap_report():
    records = [
        HeatmapRecord(
            seq_len=n, d_model=w, num_heads=h, kind="formula", quantity="flops", phase="train",
            value_a=2 * w + n, value_b=w + n, ratio=None if w % h else (2 * w + n) / (w + n),
        )
        for h in (1, 2, 3)
        for n in (1, 8, 64)
        for w in (3, 6, 12)
    ]  # fmt: skip
    by_head = {"1": 40.0, "2": 40.0, "3": None}
    summary = {
        "mechanism_a": "standard", "mechanism_b": "efficient", "kind": "formula",
        "quantity": "flops", "phase": "train", "causal": False, "scope": "layer",
        "source_a": None, "source_b": None, "mean_excess_percent": by_head,
        "max_excess_percent": by_head, "not_divisible_d_model": {"2": [3]},
    }  # fmt: skip
    return Report("heatmap", records, summary)


def compare_report(lengths=(1024, 4096)):
    mechanisms = registry.configured(["standard", "sdpa", "linear", "linformer"], {})
    return Report(
        "compare",
        compare_records(mechanisms, [Workload(n, 8, 64, causal=True) for n in lengths], "layer"),
    )


REPORTS = {
    "crossover": partial(crossover_report, (16,)), "heads": heads_report, "heatmap": heatmap_report,
}  # fmt: skip
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize(
    ("name", "suffix"), [("crossover", ".png"), ("heatmap", ".svg"), ("heads", ".pdf")]
)
def test_the_suffix_chooses_the_format_and_bytes_repeat(name, suffix, tmp_path):
    first, second = tmp_path / f"one{suffix}", tmp_path / f"two{suffix.upper()}"
    for path in (first, second):
        plot_report(REPORTS[name](), path)
    assert first.read_bytes().startswith(MAGIC[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_drawing_leaves_the_callers_settings_alone(tmp_path):
    before = dict(mpl.rcParams)
    plot_report(heads_report(), tmp_path / "heads.png")
    assert dict(mpl.rcParams) == before


def assert_legible(figure, size, monkeypatch):
    """As wide as asked, no letter smaller than 7 points, none outside the paper."""
    drawn, draw = [], Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, to: (drawn.append(text), draw(text, to)))
    figure.set_dpi(72)
    figure.draw_without_rendering()
    assert figure.get_figwidth() == WIDTHS[size]
    assert figure.get_figheight() <= HEIGHT
    paper = figure.bbox.padded(1)
    for text in (text for text in drawn if text.get_text().strip()):
        assert text.get_fontsize() >= 7, text
        box = text.get_window_extent()
        assert all(map(paper.fully_containsx, (box.x0, box.x1))), text
        assert all(map(paper.fully_containsy, (box.y0, box.y1))), text


DRAWN = {
    "crossover": lambda: draw_crossover(crossover_report()),
    "five widths": lambda: draw_crossover(crossover_report((8, 16, 32, 64, 128))),
    "heads": lambda: draw_heads(heads_report()),
    "compare": lambda: draw_compare(compare_report()),
    "heatmap": lambda: draw_heatmap(heatmap_report()),
}


@pytest.mark.parametrize(
    ("what", "size"), [*((what, "column") for what in DRAWN), ("five widths", "page")]
)
def test_every_figure_is_legible_on_a_page_and_in_a_column(what, size, monkeypatch):
    with styled(size):
        assert_legible(DRAWN[what](), size, monkeypatch)


def test_a_history_of_zeros_has_short_labels_and_its_runs_are_named():
    runs = [
        HistoryRecord(case="linear", metric=metric, file="run.json", run=run, value=0, level=0.0)
        for metric in ("uncounted_operations", "unknown_scratch") for run in (1, 2, 3)
    ]  # fmt: skip
    with styled():
        figure = draw_history(Report("history", runs))
        figure.draw_without_rendering()
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert len(labels) > 4
    assert max(map(len, labels)) <= 4
    assert {axes.get_xlabel() for axes in figure.axes} == {"run"}


def test_cells_of_a_vector_heatmap_overlap_by_a_hair(tmp_path):
    plot_report(heatmap_report(), tmp_path / "ratio.svg")
    drawn = (tmp_path / "ratio.svg").read_text()
    meshes = re.findall(r'id="QuadMesh_\d+">(.*?)</g>', drawn, re.DOTALL)
    cells = [re.findall(r"fill: (#\w+); stroke: (#\w+)", mesh) for mesh in meshes]
    assert [len(colours) for colours in cells[:2]] == [9, 6]
    assert all(fill == stroke for colours in cells for fill, stroke in colours)


def test_a_figure_of_an_unknown_suffix_or_that_cannot_be_written_is_refused(tmp_path):
    for name in ("figure.gif", "figure", "figure.csv"):
        with pytest.raises(RequestError, match=r"\.png, \.svg, \.pdf.*figure\.png"):
            check_figure_path(name)
    with pytest.raises(RequestError, match="cannot write"):
        plot_report(heads_report(), tmp_path / "missing" / "heads.png")
    assert not list(tmp_path.iterdir())


def test_a_comparison_has_a_line_a_mechanism_over_length():
    figure = draw_compare(compare_report())
    styles = {(line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines}
    assert [len(axes.lines) for axes in figure.axes] == [3, 3]  # one has no causal form
    assert len(styles) == 3
    assert figure.legends[0].get_title().get_text().startswith("FLOPs and peak memory")
    with pytest.raises(RequestError, match="--seq 1024:131072:x2"):
        draw_compare(compare_report((64,)))


def _crossing_places(axes):
    return [
        float(line.get_xdata()[0])
        for line in axes.lines
        if len(line.get_xdata()) == 1 and line.get_marker() not in ("None", None)
    ]


def test_crossovers_are_marked_where_the_curves_meet_and_named():
    axes = draw_crossover(crossover_report()).axes
    mains, strips = axes[::2], axes[1::2]
    assert [main.get_title() for main in mains] == ["d = 16", "d = 32"] * 2
    for main, strip, d, symbol in zip(mains, strips, (16, 32, 16, 32), "0011", strict=True):
        for panel, height in ((main, MEETINGS[d] ** 2), (strip, 1)):
            assert _crossing_places(panel) == [MEETINGS[d]] * 2
            heights = [line.get_ydata()[0] for line in panel.lines if len(line.get_xdata()) == 1]
            assert heights == pytest.approx([height] * 2)
        named = f"$N_{symbol}$ = {MEETINGS[d]:,}"
        assert main.texts[0].get_text() == f"○ {named}\n◆ {named}"
        assert main.get_xlim() == strip.get_xlim()
        assert strip.lines[1].get_ydata() == pytest.approx([n / MEETINGS[d] for n in LENGTHS])
        styles = {(line.get_linestyle(), line.get_marker()) for line in main.lines[:4]}
        assert len(styles) == 4


def test_axes_are_named_after_every_metric():
    metrics = [(name, COUNTED_AS[name][1]) for name in ALL_METRICS]
    figure = draw_crossover(crossover_report((16,), metrics))
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == [
        "FLOPs", "memory [B]", "matmul FLOPs", "decoding state [B]", "traffic a step [B]",
        "time [s]",
    ]  # fmt: skip


def test_a_pair_that_never_crosses_says_so():
    text = draw_crossover(crossover_report((8,))).axes[0].texts[0]
    assert text.get_text() == "○ no crossover\n◆ no crossover"


@pytest.mark.parametrize("widths", [(16,), (8, 16, 32, 64, 128)])
def test_one_to_five_head_widths_stand_side_by_side(widths):
    figure = draw_crossover(crossover_report(widths))
    figure.draw_without_rendering()
    mains = figure.axes[::2]
    assert len(mains) == 2 * len(widths)
    rows = {round(axes.get_position().y0, 3) for axes in mains}
    assert len(rows) == (1 if len(widths) == 1 else 2)


@pytest.mark.parametrize(
    ("optimum", "says"), [(547.8, "right of every divisor"), (3.0, "the dotted line")]
)
def test_the_real_optimum_is_named_inside_or_outside_the_range(optimum, says):
    figure = draw_heads(heads_report(optimum))
    assert says in figure.get_supxlabel().replace("\n", " ")
    for axes in figure.axes:  # values fill the panel
        highest = max(max(line.get_ydata()) for line in axes.lines)
        assert axes.get_ylim()[1] < 10 * highest


def test_heatmap_panels_carry_mean_and_maximum_and_share_one_scale():
    figure = draw_heatmap(heatmap_report())
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0].replace("\n", " ") == "1 head, mean +40.00 %, max +40.00 %"
    assert "no values" in titles[2]
    meshes = [axes.collections[0] for axes in figure.axes[:3]]
    assert len({(mesh.norm.vmin, mesh.norm.vmax) for mesh in meshes}) == 1
    empty = meshes[1].get_array().mask.tolist()
    assert empty == [[True, False, False]] * 3  # 3 is no multiple of 2


def test_cells_are_equally_wide_whatever_their_sizes_and_labels_have_room():
    assert size_ticks([1, 8, 9, 64], 4) == ([0, 1, 2, 3], ["1", "8", "9", "64"])
    assert size_ticks([1, 8, 9, 64], 2.5) == ([0, 2], ["1", "9"])
    assert size_ticks(range(8, 808, 8), 9)[1] == ["200", "400", "600", "800"]


def test_a_width_without_values_is_grey_and_not_covered_by_its_neighbours():
    axes, ratios = Figure().subplots(), np.array([[1.0, np.nan, 4.0]] * 2)
    mesh = draw_cells(axes, ratios, [1, 2], [1, 2, 4], Scale.of(ratios))
    assert mesh.get_array().mask.tolist() == [[False, True, False]] * 2
    assert [text.get_text() for text in axes.texts] == ["1", "4"] * 2


def test_the_colour_scale_is_two_sided_where_each_wins_somewhere():
    scale = Scale.of(np.array([0.01, np.nan, 20.0]))
    assert scale.two_sided
    assert 1.0 in scale.levels()
    assert scale.norm()(1.0) == pytest.approx(0.5)
    assert not Scale.of(np.array([1.0, 1.6])).two_sided
    same = Scale.of(np.array([1.0, 1.0]))
    assert same.low < 1 < same.high


def test_every_mechanism_of_a_figure_has_its_own_colour():
    names = ["standard", "taylor-direct", "mine", "yours", "efficient", "taylorshift"]
    hues = {look["color"] for look in looks(names).values()}
    assert len(hues) == len(names)
    assert hues <= set(PALETTE)


def model_report(shares, cache):
    summary = {"name": "small", "dtype": "float32", "curves": {"shares": shares, "cache": cache}}
    return Report("model", [], summary)


def test_shares_of_a_model_fill_each_phase_and_its_cache_grows_beside():
    curve = {"batch_size": 2, "seq_len": LENGTHS, "parts": {
        "mlp": list(LENGTHS), "attention": [n * n for n in LENGTHS]}}  # fmt: skip
    cache = {"batch_size": 2, "seq_len": LENGTHS, "bytes": [64 * n for n in LENGTHS]}
    with styled("column"):
        figure = draw_model(model_report({"forward": curve, "train": curve}, cache))
    forward, train, growth = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["forward", "train", "cache"]
    assert len(forward.collections) == len(train.collections) == 2
    top = max(y for _, y in forward.collections[-1].get_paths()[0].vertices)
    assert top == pytest.approx(100)
    assert [1024 * y for y in growth.lines[0].get_ydata()] == cache["bytes"]
    assert growth.get_ylabel().endswith("[KiB]")
    with pytest.raises(RequestError, match="small has no formula in N"):
        draw_model(model_report({}, None))


@pytest.mark.parametrize(("low", "high"), [(38, 130), (2.5, 10.7), (2, 4.9), (0.9, 1.1), (6, 7)])
def test_less_than_a_decade_has_three_ticks_at_least(low, high):
    marks = ticks.round_numbers(low, high)
    assert 3 <= len(marks) <= 6
    assert all(low * (1 - 1e-9) <= value <= high * (1 + 1e-9) for value in marks)
