"""002's drawings of its sublayers: steps, what they wait for, critical paths."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attnprof.papers.documents import document, not_made
from attnprof.papers.extractors.checks import WIDTH, WINDOW
from attnprof.papers.extractors.figures import FIGURES
from attnprof.render.plots.documents.extractors import DRAWINGS

NAMES = {"2": "self_attention", "3": "she", "4": "we", "5": "he", "6": "me"}


@pytest.mark.parametrize("key", FIGURES)
def test_steps_wait_for_steps_before_them_and_the_path_is_a_chain(key):
    rows = FIGURES[key].data().rows
    known = {"input row"}
    for row in rows:
        assert set(row["waits for"].split(" + ")) <= known
        known.add(row["step"])
    chain = [row for row in rows if row["on critical path"]]
    for before, after in pairwise(chain):
        assert before["step"] in after["waits for"].split(" + ")
    path = ";".join(row["operations"] for row in chain)
    printed = {
        row["sublayer"]: row["steps_in_order"] for row in document("002").rows("critical_paths")
    }
    assert path == printed[NAMES[key]]


@pytest.mark.parametrize(("key", "multiplications"), [
    ("2", 2 * WINDOW * WIDTH + 4 * WIDTH**2),
    ("3", WINDOW * WIDTH**2 + 2 * WIDTH**2 + WIDTH),
    ("4", WINDOW * WIDTH + 2 * WIDTH**2 + WIDTH),
    ("5", WINDOW * WIDTH + 3 * WIDTH**2 + WIDTH),
    ("6", WINDOW * WIDTH),
])  # fmt: skip
def test_steps_add_up_to_tables_5_and_6(key, multiplications):
    assert sum(row["multiplications"] for row in FIGURES[key].data().rows) == multiplications


@pytest.mark.parametrize("key", FIGURES)
def test_all_that_is_described_agrees(key):
    described = FIGURES[key].data().described
    assert len(described) == (2 if key in "236" else 1)
    assert all(item.agrees for item in described)


@pytest.mark.parametrize("key", FIGURES)
def test_a_sublayer_is_drawn_with_all_its_steps(key):
    data = FIGURES[key].data()
    texts = {text.get_text().replace("\n", " ") for text in DRAWINGS[key](data).axes[0].texts}
    named = {row["step"].replace("input", "mapped rows") for row in data.rows}
    assert named <= texts


def test_every_figure_is_made_or_its_reason_given():
    assert set(FIGURES) | set(not_made("002")) == {str(n) for n in range(1, 12)}
    assert set(FIGURES) == set(DRAWINGS)
