"""One meaning a name, and files called after what is in them."""

import ast
from collections import defaultdict

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
