"""The page on measuring names fields, flags and grids that are there."""

import re
from dataclasses import fields
from pathlib import Path

from attnprof.cli import measurement
from attnprof.measure.correctness import TOKENS
from attnprof.measure.request import Budget
from attnprof.measure.sweep import points_of
from attnprof.record import ProfileRecord
from attnprof.render.plots.results import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "measuring.md").read_text(encoding="utf-8")


def test_every_field_of_the_table_is_one():
    cells = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(named) > 20
    assert named <= {item.name for item in fields(ProfileRecord)}


def test_the_grids_of_the_page_are_points(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    points = points_of(measurement.grids_from_file(path), Budget())
    assert len(points) == 2 * 6 + 2 * 2 * 2


def test_the_page_has_every_kind_of_figure_and_the_defaults():
    assert [kind for kind in KINDS if f"`{kind}`" not in PAGE] == []
    assert f"at {TOKENS} tokens" in PAGE
    assert f"After {Budget().warmup_s} s of warm-up" in PAGE
