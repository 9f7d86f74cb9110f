"""000's tables, made again: what differs from the printed, and why nothing else does."""

from __future__ import annotations

import pytest

from attnprof.papers.better_attention.figures import TABLES
from attnprof.papers.documents import document
from attnprof.papers.regenerated import Cell


def cells(table: str) -> list[Cell]:
    rows = TABLES[table]().rows
    return [cell for row in rows for cell in row.values() if isinstance(cell, Cell)]


@pytest.mark.parametrize(
    ("table", "different"),
    [
        ("1", 2), ("2", 0), ("3", 1), ("4", 0), ("5", 2), ("6", 4), ("7", 4), ("8", 0), ("9", 0),
        ("10", 1), ("eq24", 0), ("fig3", 8), ("quoted", 8),
    ],
)  # fmt: skip
def test_only_known_slips_differ(table, different):
    assert sum(cell.differs for cell in cells(table)) == different


def test_every_table_of_the_document_is_there():
    assert set(TABLES) == {*map(str, range(1, 11)), "eq24", "fig3", "quoted"}


@pytest.mark.parametrize("table", TABLES)
def test_columns_are_those_of_the_rows(table):
    made = TABLES[table]()
    assert all(tuple(row) == tuple(made.columns) for row in made.rows)


@pytest.mark.parametrize(
    ("table", "name"),
    [("1", "table01_main"), ("5", "table05_mnist_heads"), ("7", "table07_imagenet_equal_size")],
)
def test_every_printed_result_is_shown_as_printed(table, name):
    columns = {"acc_pct": "accuracy (%)", "test_loss": "test loss"}
    for row, shown in zip(document("000").rows(name), TABLES[table]().rows, strict=True):
        for column, title in columns.items():
            cell = shown[title]
            text = cell.printed if isinstance(cell, Cell) else cell
            rank = row[f"{column}_rank"]
            assert text == (f"{row[column]} ({rank})" if rank else row[column])


def test_super_on_cifar100_has_the_parameters_of_the_stated_length():
    (cell,) = (
        row["parameters"]
        for row in TABLES["6"]().rows
        if row["attention"] == "super" and row["h"] == 8
    )
    assert (cell.printed, cell.ours) == ("197,890 (3)", "197,376 (3)")


def test_table_1_cuts_off_as_printed():
    sizes = [cell for row in TABLES["1"]().rows for cell in [row["parameters"]]]
    assert [cell.ours for cell in sizes] == [cell.printed for cell in sizes]
