"""Document 002 replayed: counts by loops over its equations, errata with their right value."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import sympy

from attnprof.papers.checks import same_formula
from attnprof.papers.documents import claims, document
from attnprof.papers.extractors.checks import (
    COUNTS,
    SUBLAYERS,
    SYMBOLS,
    critical_path,
    numbers,
    sequence,
    step,
)
from attnprof.papers.regenerated import Cell

DOCUMENT = document("002")
CHECKS = DOCUMENT.checks()
ERRATA = {"002-INF-self_attention-add", "002-HE-params", "002-PPL", "002-TELESCOPE"}
SIZES = [(1, 2, 1), (3, 4, 2), (5, 6, 3)]


DONE = Counter()


class Counting(float):
    """A number that counts what is done to it."""

    def __mul__(self, other):
        DONE["mult"] += 1
        return Counting(1)

    def __add__(self, other):
        DONE["add"] += 1
        return Counting(1)

    def __truediv__(self, other):
        DONE["div"] += 1
        return Counting(1)

    def exp(self):
        DONE["exp"] += 1
        return Counting(1)


ONE = Counting(1)


def summed(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def mapped(row, outputs):
    return [summed([x * ONE for x in row]) for _ in range(outputs)]


def attention_step(past, d, heads):
    width = d // heads
    for _ in range(heads):
        query, _key, _value = (mapped([ONE] * d, width) for _ in range(3))
        scores = [summed([a * ONE for a in query]) / ONE for _ in range(past)]
        grown = [score.exp() for score in scores]
        bottom = summed(grown)
        weights = [entry / bottom for entry in grown]
        for _ in range(width):
            summed([weight * ONE for weight in weights])
    mapped([ONE] * d, d)


def extraction(name, past, d):
    row = [ONE] * d
    if name == "she":
        terms = [mapped(row, d) for _ in range(past)]
    else:
        terms = [[x * ONE for x in row] for _ in range(past)]
    return [summed(list(column)) for column in zip(*terms, strict=True)]


def extractor_step(name, past, d, _heads):
    row = [ONE] * d
    if name == "he":
        mapped(row, d)
    extracted = extraction(name, past, d)
    if name != "me":
        adjusted = [a * b for a, b in zip(mapped(row, d), extracted, strict=True)]
        mapped(adjusted, d)


def looped(name, length, d, heads, *, first=1):
    DONE.clear()
    one = attention_step if name == "self_attention" else partial(extractor_step, name)
    for t in range(first, length + 1):
        one(t, d, heads)
    return {quantity: DONE[quantity] for quantity in COUNTS}


def at(form, length, d, heads):
    values = dict(zip(SYMBOLS, (length, length, d, heads), strict=True))
    return int(sympy.sympify(form).subs(values))


@pytest.mark.parametrize("name", SUBLAYERS)
@pytest.mark.parametrize(("length", "d", "heads"), SIZES)
def test_counts_are_those_of_a_loop_over_the_equations(name, length, d, heads):
    whole = looped(name, length, d, heads)
    last = looped(name, length, d, heads, first=length)
    plain = numbers(name, length, d, heads)
    assert {
        quantity: at(sequence(name)[quantity], length, d, heads) for quantity in COUNTS
    } == whole
    assert {quantity: at(step(name)[quantity], length, d, heads) for quantity in COUNTS} == last
    assert {quantity: plain[quantity] for quantity in COUNTS} == whole
    assert plain["total_ops"] == sum(whole.values())


def test_every_claim_is_answered_by_computing():
    ids = [claim for claim, about in claims().items() if about.document == "002"]
    assert set(CHECKS) == set(ids)
    answers = [CHECKS[claim].answer() for claim in ids]
    assert {answer.basis for answer in answers} == {"computed"}
    assert {answer.claim for answer in answers if answer.verdict != "match"} == ERRATA
    assert all(answer.why for answer in answers if answer.verdict != "match")


def test_the_steps_as_printed_do_not_add_up_to_the_training():
    answer = CHECKS["002-TELESCOPE"].answer()
    assert "10,164,160 instead of 10,416,128" in answer.why
    assert "self_attention add" in answer.why
    wrong = [
        (name, quantity)
        for name, forms in answer.ours.items()
        for quantity in forms
        if not same_formula(forms[quantity], answer.published[name][quantity])
    ]
    assert wrong == [("self_attention", "add")]


def test_the_misprint_of_table_5_with_its_right_value():
    answer = CHECKS["002-INF-self_attention-add"].answer()
    t, d, n = sympy.symbols("t d n")
    assert sympy.expand(sympy.sympify(answer.ours) - (2 * t * d + 4 * d**2 - 5 * d - n)) == 0
    assert "(n - 1)*(t - 1) too few" in answer.why
    assert "added up once" in answer.why


def test_me_does_least_of_the_extractors_in_loops_over_their_equations():
    for length, d, _ in SIZES:
        whole = {name: sum(looped(name, length, d, 1).values()) for name in SUBLAYERS[1:]}
        weights = {"she": length * d * d + 2 * d * d, "he": length * d + 3 * d * d,
                   "we": length * d + 2 * d * d, "me": length}  # fmt: skip
        for name in ("she", "he", "we"):
            assert whole[name] > whole["me"]
            assert weights[name] > weights["me"]
    assert CHECKS["002-ME-least"].answer().verdict == "match"


def test_he_has_as_many_parameters_as_attention():
    answer = CHECKS["002-HE-params"].answer()
    assert answer.ours["he"] == {"operations": True, "parameters": False}
    assert "65,536" in answer.why


@pytest.mark.parametrize(
    ("name", "steps"), [("self_attention", 12), ("she", 5), ("we", 5), ("he", 7), ("me", 2)]
)
def test_critical_paths_have_as_many_steps_as_known(name, steps):
    assert len(critical_path(name).split(";")) == steps


@pytest.mark.parametrize("claim", sorted(CHECKS))
def test_our_value_in_print_would_be_a_match(claim):
    check = CHECKS[claim]
    assert replace(check, published=check.ours()).answer().verdict == "match"


def cells(number):
    return [
        (row["quantity"], row["sublayer"], name)
        for row in DOCUMENT.part("tables", "TABLES")[number]().rows
        for name, value in row.items()
        if isinstance(value, Cell) and value.differs
    ]


def test_the_tables_made_again_differ_in_one_cell():
    tables = DOCUMENT.part("tables", "TABLES")
    assert list(tables) == ["1", "2", "3", "4", "5", "6", "7"]
    assert cells("5") == [("add", "self_attention", "closed form")]
    for number in ("3", "4", "6"):
        assert cells(number) == []
    for number in ("1", "7"):
        values = [value for row in tables[number]().rows for value in row.values()]
        assert [value for value in values if isinstance(value, Cell)]
        assert not any(value.differs for value in values if isinstance(value, Cell))
