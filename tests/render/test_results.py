"""Figures of results: every curve, its ends and its crossings; repeatable bytes; legibility.

Of a factorial sweep (five mechanisms, two widths, two head counts, three lengths) not the pixels
are looked at but what is seen: panels and their titles, ticks, one legend that covers nothing, and
no text outside the figure or on another one.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import pytest

from attnprof.errors import RequestError
from attnprof.measure.sweep import curve_crossings, load_results
from attnprof.record import ProfileRecord, Report
from attnprof.render.plots.results import KINDS, draw_results, front
from attnprof.render.plots.series import facets, series_of
from attnprof.render.plots.style import HEIGHT, plot, styled

CEILINGS = [{"device": "a device", "flops_per_s": {"float32": 1e11}, "bytes_per_s": 1e10,
             "source": "a test"}]  # fmt: skip


def record(name, n, *, width=64, heads=2, time=None, **fields):
    seconds = n**2 * 1e-8 if name == "standard" else n * 1e-6
    seconds = seconds if time is None else time
    values = {
        "median_s": seconds, "ci_low_s": seconds * 0.9, "ci_high_s": seconds * 1.1,
        "peak_bytes_predicted": n * 1000, "peak_bytes_measured": n * 1000,
        "flops_formula": n * width * 100, "flops_per_s": 1e9, "arithmetic_intensity": n / 100,
        "device": "cpu", **fields,
    }  # fmt: skip
    return ProfileRecord(
        mechanism=name, batch_size=1, seq_len=n, d_model=width, num_heads=heads, dtype="float32",
        head_dim=width // heads, phase="forward", causal=False, **values,
    )  # fmt: skip


def report(**more):
    records = [
        record(name, n, width=width, heads=heads)
        for name in ("standard", "linear")
        for n in more.get("lengths", (32, 64, 128, 256))
        for width in more.get("widths", (64,))
        for heads in more.get("heads", (2,))
    ]
    return Report("sweep", records, {}, {"device_name": more.get("device", "a device")})


def known(kind, reports):
    """What the command line finds out for a figure."""
    if kind == "growth":
        return {"crossings": curve_crossings(reports)}
    return {"ceilings": CEILINGS} if kind == "roofline" else {}


@pytest.mark.parametrize(
    ("kind", "suffix"), [("growth", ".svg"), ("growth", ".pdf"), ("roofline", ".png")]
)
def test_a_figure_s_bytes_repeat(tmp_path, kind, suffix):
    paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        plot(path, partial(draw_results, **known(kind, [report()])), [report()], kind)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_measured_curves_that_cross_are_marked_where_they_do():
    time = draw_results([report()], **known("growth", [report()])).axes[0]
    (circle,) = [line for line in time.lines if line.get_markerfacecolor() == "none"]
    assert circle.get_xdata()[0] == pytest.approx(100, rel=1e-6)  # n²·1e-8 = n·1e-6


def test_a_curve_ends_with_a_cross_where_the_next_length_did_not_fit():
    failed = record("standard", 512, median_s=None, peak_bytes_measured=None,
                    skipped="does not fit: needs 2 GiB")  # fmt: skip
    measured = Report("sweep", [*report().records, failed])
    for axes in draw_results([measured]).axes:
        assert [t.get_text() for t in axes.texts if t.get_text() == "standard: OOM"]
        assert [line for line in axes.lines if line.get_marker() == "x"]


def test_labels_are_mechanisms_and_titles_say_only_what_differs():
    wide = [*report().records, record("linear", 32, width=128)]
    assert [s.label for s in series_of(wide, "seq_len")] == ["standard", "linear"]
    assert [title for title, _ in facets(report().records, "seq_len")] == [""]
    assert [title for title, _ in facets(wide, "seq_len")] == ["d_model 64", "d_model 128"]


def test_sizes_that_are_not_known_have_a_panel_of_their_own_and_no_surface():
    modules = [record("my.py:A", n) for n in (8, 16)]
    records = [*(replace(r, d_model=None, num_heads=None) for r in modules), record("linear", 8)]
    assert [title for title, _ in facets(records, "seq_len")] == [
        "d_model unknown, num_heads unknown", "d_model 64, 2 heads"]  # fmt: skip
    with pytest.raises(RequestError, match="one seq_len"):
        draw_results([Report("sweep", records)], "surface")


def test_labels_say_only_parameters_that_differ():
    pair = [record("longformer", 64, params={"window": w, "impl": "blocks"}) for w in (8, 16)]
    labels = {s.label for s in series_of(pair, "seq_len")}
    assert labels == {"longformer, window=8", "longformer, window=16"}
    (one,) = series_of(pair, "seq_len", by_params=False)
    assert len(one.records) == 2


def test_devices_of_several_files_have_panels_of_their_own():
    reports = [report(device="one"), report(device="two")]
    figure = draw_results(reports, **known("growth", reports))
    assert [axes.get_title() for axes in figure.axes] == ["one", "", "two", ""]
    for axes in figure.axes[::2]:
        assert len(axes.lines) > 2
        assert [text.get_text() for text in axes.texts] == ["○ N = 100"]


def test_two_results_for_one_point_are_refused():
    with pytest.raises(RequestError, match=r"two results for one point.*32 tokens"):
        draw_results([report(), report()])


def test_a_ratio_needs_one_mechanism_to_compare_with():
    pair = [record("standard", n, width=w, params={"bias": b})
            for n in (8, 16) for w in (8, 16) for b in (True, False)]  # fmt: skip
    with pytest.raises(RequestError, match="--where bias=True"):
        draw_results([Report("sweep", pair)], "surface")
    with pytest.raises(RequestError, match="two mechanisms"):
        draw_results([Report("sweep", pair[::2])], "surface")


@pytest.mark.parametrize(("kind", "said"), [
    ("surface", "one d_model"), ("surface3d", "one d_model"), ("width", "one d_model"),
    ("heads", "one num_heads"), ("pareto", "error"), ("roofline", "calibrate"),
])  # fmt: skip
def test_results_that_lack_what_a_kind_shows_are_refused(kind, said):
    with pytest.raises(RequestError, match=said):
        draw_results([report()], kind)


def test_nothing_measured_is_nothing_to_draw_and_the_front_is_what_nothing_beats():
    empty = Report("sweep", [record("linear", 8, median_s=None, peak_bytes_predicted=None)])
    with pytest.raises(RequestError, match="nothing to draw"):
        draw_results([empty])
    assert front([(1, 5), (2, 6), (3, 2), (4, 2), (5, 1)]) == [(1, 5), (3, 2), (5, 1)]


# -- a factorial sweep ----------------------------------------------------------------------
SWEEP = Path(__file__).parent / "data" / "factorial.jsonl"
NAMES = ["standard", "sdpa", "linear", "efficient", "taylor-efficient"]
BY_WIDTH = [f"d_model {w}, {h} heads" for w in (32, 64) for h in (2, 4)]
LENGTHS = ("64 tokens", "256 tokens", "1,024 tokens")
#: Of each kind: the panels' titles, and how many panels each has.
TITLES = {
    "growth": (BY_WIDTH, 2),
    "surface": ([f"{name}, {h} heads" for h in (2, 4) for name in NAMES[1:]], 1),
    "surface3d": (["2 heads", "4 heads"], 1),
    "width": ([f"{h} heads, {n}" for h in (2, 4) for n in LENGTHS], 1),
    "heads": ([f"d_model {w}, {n}" for w in (32, 64) for n in LENGTHS], 3),
    "roofline": (BY_WIDTH, 1),
    "pareto": ([f"{name}, {n}" for name in BY_WIDTH for n in LENGTHS], 1),
}
#: What all that is drawn shares begins the caption.
SAID = {
    "growth": "forward, float32, scope layer, cpu, batch 1",
    "surface": "forward, float32, scope layer, cpu, batch 1 · FLOPs",
    "heads": "forward, float32, scope layer, cpu, batch 1 ·",
}


sweep = cache(lambda: load_results(SWEEP))


@cache
def drawn(kind, size="page"):
    """A figure as it is laid out, in coarse pixels."""
    with styled(size):
        figure = draw_results([sweep()], kind, **known(kind, [sweep()]))
        figure.set_dpi(72)
        figure.draw_without_rendering()
    return figure


def texts_of(axes):
    """Visible texts that are not empty."""
    ticks = [label for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()]
    texts = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *ticks]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def overlap(one, other):
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return width > 1 and height > 1


@pytest.mark.parametrize(
    ("kind", "size"),
    [*((kind, "column") for kind in KINDS), *((kind, "page") for kind in ("growth", "surface"))],
)
def test_a_factorial_sweep_is_legible(kind, size):
    figure = drawn(kind, size)
    titles, panels = TITLES[kind]
    drawn_titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert [title for title in drawn_titles if title] == titles
    bar = kind == "surface"
    assert len(figure.axes) == len(titles) * panels + bar
    if not bar:
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == NAMES
        looks = {(line.get_linestyle(), line.get_marker()) for line in legend.get_lines()}
        assert len(looks) == len(NAMES) or kind == "surface3d"
        for axes in figure.axes:
            assert not overlap(legend.get_window_extent(), axes.bbox)
    texts = [text for axes in figure.axes for text in texts_of(axes)]
    assert all(text.get_fontsize() >= 7 for text in texts)
    boxes = [text.get_window_extent() for text in texts]
    assert figure.get_figheight() <= HEIGHT
    assert figure.get_supxlabel().replace("\n", " ").startswith(SAID.get(kind, ""))
    if kind != "surface3d":  # its labels lie in depth
        ticks_are_plain(figure, kind)
        assert all(box.x0 > -1 and box.x1 < figure.bbox.x1 + 1 for box in boxes)
        pairs = combinations(zip(texts, boxes, strict=True), 2)
        assert not [(one, other) for (one, a), (other, b) in pairs if overlap(a, b)]


def ticks_are_plain(figure, kind):
    """Every axis that has labels has several, without powers of ten."""
    for axes in figure.axes[: -1 if kind == "surface" else None]:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_tick_params().get("labelbottom", axis.get_tick_params().get("labelleft")):
                labels = [label.get_text().replace("exact", "") for label in axis.get_ticklabels()]
                assert len(labels) > 1
                assert not any("$" in label or "e" in label for label in labels)


def test_crossings_are_between_mechanisms_of_one_panel_and_named():
    crossings = curve_crossings([sweep()])
    figure = drawn("growth")
    for axes, (width, heads) in zip(
        figure.axes[::2], ((w, h) for w in (32, 64) for h in (2, 4)), strict=True
    ):
        its = [n for at, n, _ in crossings if (at.d_model, at.num_heads) == (width, heads)]
        circles = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        assert sorted(line.get_xdata()[0] for line in circles) == sorted(its)
        note = axes.texts[0].get_text().replace("\n", " ")
        if "crossings" not in note:
            assert note == f"○ N = {', '.join(f'{n:.0f}' for n in sorted(its))}"
        else:
            assert f"{len(its)} crossings" in note


def test_what_ran_out_of_memory_is_named_over_the_data():
    *_, time, memory = drawn("growth").axes
    for axes in (time, memory):
        (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
        assert cross.get_xdata() == [1024]
        (named,) = [text for text in axes.texts if text.get_text() == "standard: OOM"]
        highest = max(
            axes.transData.transform(xy)[1]
            for line in axes.lines if line.get_transform() == axes.transData
            for xy in line.get_xydata() if xy[1] > 0
        )  # fmt: skip
        assert named.get_window_extent().y0 > highest


def test_exact_mechanisms_have_no_error_in_the_figure():
    axes = drawn("pareto").axes[0]
    assert "exact" in [label.get_text() for label in axes.get_yticklabels()]
    heights = {
        line.get_color(): line.get_ydata()[0] for line in axes.lines if line.get_marker() != "None"
    }
    assert len(set(heights.values())) == 3  # three are exact, at one height


def test_a_grid_that_no_page_holds_says_what_to_choose():
    records = [record("linear", n, width=w, heads=h)
               for n in (64, 128, 256, 512) for w in (64, 128) for h in (2, 4)]  # fmt: skip
    with styled("column"), pytest.raises(RequestError, match=r"12 rows.*seq_len=64, or type"):
        draw_results([Report("sweep", records)], "heads")


def test_a_long_name_that_ran_out_of_memory_stays_in_its_panel():
    name = "path/to/models.py:GroupedQueryRotaryPositionalSelfAttentionWithGating"
    records = [record("linear", n, width=w) for n in (64, 128) for w in (64, 128, 256, 512)]
    failed = {"median_s": None, "peak_bytes_measured": None, "skipped": "out of memory"}
    records += [record(name, 128, width=w, **failed) for w in (64, 128, 256, 512)]
    figure = draw_results([Report("sweep", records)])
    figure.set_dpi(72)
    figure.draw_without_rendering()
    for axes in figure.axes:
        (note,) = axes.texts
        assert note.get_text().replace("\n", "").startswith("GroupedQuery")
        assert note.get_window_extent().x1 < axes.bbox.x1 + 6


def test_a_missing_point_is_crossed_out_on_a_surface():
    records = [record(name, n, width=w) for name in ("standard", "linear")
               for n in (64, 128) for w in (64, 128)][:-1]  # fmt: skip
    figure = draw_results([Report("sweep", records)], "surface")
    assert figure.axes[0].patch.get_hatch() == "xxx"
    assert figure.get_supxlabel().endswith("crossed out: no result")


def test_a_caption_tells_no_more_than_is_drawn():
    alone = draw_results([Report("sweep", [record("linear", 64, ci_low_s=None)])])
    caption = alone.get_supxlabel().replace("\n", " ")
    assert caption.endswith("64 tokens · memory points: by the allocator")
