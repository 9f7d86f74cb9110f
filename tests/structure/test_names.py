"""One meaning a name, and files called after what is in them."""

import ast
import csv
import re
from collections import defaultdict
from pathlib import Path

from tests.structure.test_rooms import PACKAGE, SOURCES

#: What the field itself calls so.
TERMS = {"decoding", "hashing"}


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.removeprefix("_")].append(str(path.relative_to(PACKAGE)))
    shared = {name: files for name, files in places.items() if len(files) > 1}
    assert not shared


def test_no_file_is_called_after_an_activity():
    stems = {path.stem for path in SOURCES if path.stem.endswith("ing")}
    assert {stem for stem in stems if "_" not in stem} <= TERMS


def bound_names(function):
    """Return parameters and variables of a function."""
    nodes = list(ast.walk(function))
    stored = {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return stored | {x.arg for x in nodes if isinstance(x, ast.arg)}


def test_names_that_said_nothing_do_not_come_back():
    """``renames.csv`` has the functions in which values called ``found`` or ``held`` got a noun."""
    rows = list(csv.DictReader(Path(__file__).with_name("renames.csv").read_text().splitlines()))
    wrong = []
    for row in rows:
        path = PACKAGE.parent / row["file"]
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if re.search(rf"\b{row['was']}\b", text):
            wrong += [
                (row["file"], node.name, row["was"])
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef) and node.name == row["function"]
                if row["was"] in bound_names(node)
            ]
    assert len(rows) > 400
    assert not wrong
