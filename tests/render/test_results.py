"""Figures of results: every curve, its ends and its crossings; repeatable bytes."""

from dataclasses import replace
from functools import partial

import pytest

from attnprof.errors import RequestError
from attnprof.measure.sweep.results import curve_crossings
from attnprof.record import ProfileRecord, Report
from attnprof.render.plots.results import KINDS, draw_results, front
from attnprof.render.plots.series import facets, series_of
from attnprof.render.plots.style import plot

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


SHOWN = {
    "growth": report(), "width": report(widths=(64, 128), lengths=(64,)),
    **dict.fromkeys(("surface", "surface3d"), report(widths=(64, 128))),
    "heads": report(heads=(1, 2, 4), lengths=(64,)), "roofline": report(),
    "pareto": Report("sweep", [record("standard", 64, error=0.0), record("linear", 64, error=0.3)]),
}  # fmt: skip


def known(kind, reports):
    """What the command line finds out for a figure."""
    if kind == "growth":
        return {"crossings": curve_crossings(reports)}
    return {"ceilings": CEILINGS} if kind == "roofline" else {}


@pytest.mark.parametrize(("kind", "suffix"), [
    *((kind, ".png") for kind in SHOWN), ("growth", ".svg"), ("growth", ".pdf"),
])  # fmt: skip
def test_every_kind_is_drawn_and_its_bytes_repeat(tmp_path, kind, suffix):
    paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        plot(path, partial(draw_results, **known(kind, [SHOWN[kind]])), [SHOWN[kind]], kind)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_measured_curves_that_cross_are_marked_where_they_do():
    time = draw_results([report()], **known("growth", [report()])).axes[0]
    (circle,) = [line for line in time.lines if line.get_markerfacecolor() == "none"]
    assert circle.get_xdata()[0] == pytest.approx(100, rel=1e-6)  # n²·1e-8 = n·1e-6


def test_a_curve_ends_with_a_cross_where_the_next_length_did_not_fit():
    failed = record("standard", 512, median_s=None, peak_bytes_measured=None,
                    skipped="does not fit: needs 2 GiB")  # fmt: skip
    found = Report("sweep", [*report().records, failed])
    for axes in draw_results([found]).axes:
        assert [t.get_text() for t in axes.texts if t.get_text() == "standard: OOM"]
        assert [line for line in axes.lines if line.get_marker() == "x"]


def test_labels_are_mechanisms_and_titles_say_only_what_differs():
    wide = [*report().records, record("linear", 32, width=128)]
    assert [s.label for s in series_of(wide, "seq_len")] == ["standard", "linear"]
    assert [title for title, _ in facets(report().records, "seq_len")] == [""]
    assert [title for title, _ in facets(wide, "seq_len")] == ["d_model 64", "d_model 128"]


def test_sizes_that_are_not_known_have_a_panel_of_their_own_and_no_surface():
    own = [record("my.py:A", n) for n in (8, 16)]
    records = [*(replace(r, d_model=None, num_heads=None) for r in own), record("linear", 8)]
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
    ("heads", "one num_heads"),
    ("pareto", "error"),
])  # fmt: skip
def test_results_that_lack_what_a_kind_shows_are_refused(kind, said):
    with pytest.raises(RequestError, match=said):
        draw_results([report()], kind)


def test_a_roofline_needs_ceilings():
    with pytest.raises(RequestError, match="calibrate"):
        draw_results([report()], "roofline")


def test_nothing_measured_is_nothing_to_draw():
    empty = Report("sweep", [record("linear", 8, median_s=None, peak_bytes_predicted=None)])
    with pytest.raises(RequestError, match="nothing to draw"):
        draw_results([empty])


def test_the_front_is_what_nothing_beats():
    assert front([(1, 5), (2, 6), (3, 2), (4, 2), (5, 1)]) == [(1, 5), (3, 2), (5, 1)]


def test_all_kinds_are_known():
    assert set(KINDS) == set(SHOWN)
