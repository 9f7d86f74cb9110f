"""Document 002 replayed: counts by loops over its equations, errata with their right value."""

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
import sympy

from attnprof.papers.checks import formula, same_formula
from attnprof.papers.documents import document, not_made
from attnprof.papers.extractors.checks import (
    COUNTS,
    SUBLAYERS,
    SYMBOLS,
    WIDTH,
    WINDOW,
    critical_path,
    numbers,
    sequence,
    step,
)
from attnprof.papers.extractors.figures import FIGURES
from attnprof.render.plots.documents.extractors import DRAWINGS

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
    answers = [check.answer() for check in CHECKS.values()]
    assert {answer.basis for answer in answers} == {"computed"}
    assert {answer.claim for answer in answers if answer.verdict != "match"} == ERRATA


def test_the_steps_as_printed_do_not_add_up_to_the_training():
    answer = CHECKS["002-TELESCOPE"].answer()
    wrong = [
        (name, quantity)
        for name, forms in answer.ours.items()
        for quantity in forms
        if not same_formula(forms[quantity], answer.published[name][quantity])
    ]
    assert wrong == [("self_attention", "add")]
    sums = [forms["self_attention"]["add"] for forms in (answer.ours, answer.published)]
    counts = [f"{at(formula(form), 128, 128, 32):,}" for form in sums]
    assert f"add: the steps come to {' instead of '.join(sums)}" in answer.why
    assert f"{' instead of '.join(counts)} at d = l = 128, n = 32" in answer.why


def test_the_misprint_of_table_5_with_its_right_value():
    answer = CHECKS["002-INF-self_attention-add"].answer()
    t, d, n = sympy.symbols("t d n")
    ours, printed = (sympy.sympify(text) for text in (answer.ours, answer.published))
    assert sympy.expand(ours - (2 * t * d + 4 * d**2 - 5 * d - n)) == 0
    assert sympy.expand(ours - printed - (n - 1) * (t - 1)) == 0
    assert "(n - 1)*(t - 1) too few" in answer.why


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


def test_the_tables_made_again_differ_in_one_cell():
    tables = {name: make()["rows"] for name, make in DOCUMENT.part("TABLES").items()}
    assert list(tables) == ["1", "2", "3", "4", "5", "6", "7"]
    cells = [
        (number, row.get("quantity"), row.get("sublayer"), name, value["differs"])
        for number, rows in tables.items()
        for row in rows
        for name, value in row.items()
        if isinstance(value, dict)
    ]
    assert {number for number, *_ in cells} == {*tables} - {"2"}
    differing = [place for *place, differs in cells if differs]
    assert differing == [["5", "add", "self_attention", "closed form"]]


NAMES = {"2": "self_attention", "3": "she", "4": "we", "5": "he", "6": "me"}


# -- drawings of sublayers -----------------------------------------------------------------
@pytest.mark.parametrize("key", FIGURES)
def test_steps_wait_for_steps_before_them_and_the_path_is_a_chain(key):
    rows = FIGURES[key]()["rows"]
    steps = {"input row"}
    for row in rows:
        assert set(row["waits for"].split(" + ")) <= steps
        steps.add(row["step"])
    chain = [row for row in rows if row["on critical path"]]
    for before, after in pairwise(chain):
        assert before["step"] in after["waits for"].split(" + ")
    path = ";".join(row["operations"] for row in chain)
    paths = {row["sublayer"]: row["steps_in_order"] for row in DOCUMENT.rows("critical_paths")}
    assert path == paths[NAMES[key]]


@pytest.mark.parametrize(("key", "multiplications"), [
    ("2", 2 * WINDOW * WIDTH + 4 * WIDTH**2),
    ("3", WINDOW * WIDTH**2 + 2 * WIDTH**2 + WIDTH),
    ("4", WINDOW * WIDTH + 2 * WIDTH**2 + WIDTH),
    ("5", WINDOW * WIDTH + 3 * WIDTH**2 + WIDTH),
    ("6", WINDOW * WIDTH),
])  # fmt: skip
def test_steps_add_up_to_tables_5_and_6(key, multiplications):
    assert sum(row["multiplications"] for row in FIGURES[key]()["rows"]) == multiplications


@pytest.mark.parametrize("key", FIGURES)
def test_a_sublayer_is_drawn_with_all_its_steps_and_what_is_said_of_it_agrees(key):
    data = FIGURES[key]()
    assert [item["agrees"] for item in data["described"]] == [True] * (2 if key in "236" else 1)
    texts = {text.get_text().replace("\n", " ") for text in DRAWINGS[key](data).axes[0].texts}
    named = {row["step"].replace("input", "mapped rows") for row in data["rows"]}
    assert named <= texts


def test_every_figure_is_made_or_its_reason_given():
    assert set(FIGURES) | set(not_made("002")) == {str(n) for n in range(1, 12)}
