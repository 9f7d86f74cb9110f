"""The lists of operations: one place for each, all of them torch's."""

import pytest
import torch

from attnprof.trace.rules.expansions import EXPANSIONS
from attnprof.trace.rules.stand_ins import STAND_INS
from attnprof.trace.rules.table import MOVES, OVERWRITES, RULES, VIEWS

PLACES = {
    "views": VIEWS,
    "moves": MOVES,
    "rules": set(RULES),
    "expansions": set(EXPANSIONS),
}


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("second", PLACES)
def test_an_operation_is_in_one_place(first, second):
    if first != second and {first, second} != {"rules", "expansions"}:
        assert not PLACES[first] & PLACES[second]


@pytest.mark.parametrize("place", [*PLACES, "stand-ins"])
def test_every_name_is_an_operation_of_torch(place):
    known = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
    }
    spellings = known | {name.removesuffix("_") for name in known} | {n.strip("_") for n in known}
    assert not {
        name
        for name in {**PLACES, "stand-ins": set(STAND_INS)}[place]
        if name not in spellings and not name.startswith("attnprof::")
    }


def test_what_is_overwritten_is_a_move_in_place():
    assert all(name.endswith("_") and name.removesuffix("_") in MOVES for name in OVERWRITES)
