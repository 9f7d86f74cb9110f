"""000's figures, drawn: every number of the data is where it belongs."""

import numpy as np

from attnprof.papers.better_attention.figures import FIGURES
from attnprof.render.plots.documents import drawings
from attnprof.render.plots.documents.better_attention import MECHANISMS

DRAWINGS = drawings("000")
MECHANISMS_OF_FIGURE_1 = ("standard", "optimised", "efficient", "super")


def test_every_figure_has_a_drawing():
    assert set(DRAWINGS) == set(FIGURES)


def test_figure_2_draws_each_row_on_the_line_of_its_mechanism():
    data = FIGURES["2"]()
    panels = DRAWINGS["2"](data).axes
    for axes, panel in zip(panels, data["facts"]["panels"], strict=True):
        rows = [
            r for r in data["rows"] if r["counted"] == panel["counted"] and r["l"] == panel["l"]
        ]
        for name, line in zip(MECHANISMS, axes.get_lines(), strict=True):
            assert line.get_label() == name
            np.testing.assert_allclose(line.get_ydata(), [row[name] for row in rows])


def test_figure_3_has_a_panel_a_head_count_and_names_its_mean():
    data = FIGURES["3"]()
    titles = [axes.get_title() for axes in DRAWINGS["3"](data).axes]
    for heads, mean in data["facts"]["summary"]["mean_excess_percent"].items():
        name = "1 head," if heads == "1" else f"{heads} heads,"
        assert any(title.startswith(name) and f"{mean:+.2f} %" in title for title in titles)


def test_figure_4_draws_four_surfaces_on_one_scale():
    panels = DRAWINGS["4"](FIGURES["4"]()).axes
    assert len({axes.get_zlim() for axes in panels}) == 1
    assert [axes.get_title().split(":")[0] for axes in panels] == [
        "standard", "optimised", "efficient", "super",
    ]  # fmt: skip


def test_figure_1_draws_each_block_and_joins_it():
    data = FIGURES["1"]()
    for axes, name in zip(DRAWINGS["1"](data).axes, MECHANISMS_OF_FIGURE_1, strict=True):
        rows = [row for row in data["rows"] if row["mechanism"] == name]
        texts = [text.get_text() for text in axes.texts if text.get_text()]
        assert [t for t in texts if not t.startswith("$")] == [row["block"] for row in rows]
        arrows = [text for text in axes.texts if not text.get_text()]
        assert len(arrows) == sum(len(row["on"].split()) for row in rows) + 1
