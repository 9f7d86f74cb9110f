"""No verdict is written down: change what is printed and it changes, in every check."""

from __future__ import annotations

import ast
import json
import tomllib
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from time import process_time
from types import SimpleNamespace

import pytest

from attnprof.errors import RequestError
from attnprof.papers.checks import (
    COMPUTED,
    ERRATUM,
    MATCH,
    MEASURED,
    NOT_REPRODUCIBLE,
    READING,
    VERDICTS,
    between,
    load_checks,
)  # fmt: skip
from attnprof.papers.documents import DOCUMENTS, claims
from attnprof.papers.replay import committed
from tests.papers.table_cells import cell, decides, forget, perturbed, tables

MOST_READINGS = 50


def modules():
    for number, document in DOCUMENTS.items():
        for item in iter_modules([str(document.path)]):
            if item.name.startswith("checks"):
                yield number, import_module(f"attnprof.papers.{document.folder}.{item.name}")


ALL = [(number, check) for number, its in DOCUMENTS.items() for check in its.checks().values()]
CHECKS = [check for _, check in ALL]


def test_every_claim_is_answered_once_and_nothing_else_is():
    times = Counter(claim for _, module in modules() for claim in module.OURS)
    assert [claim for claim, count in times.items() if count > 1] == []
    assert set(times) == set(claims()) == {check.claim for check in CHECKS}


@cache
def said():
    """The tables of all claims.toml, by document, and by claim or pattern."""
    return [
        (number, head, entry)
        for number, document in DOCUMENTS.items()
        for head, entry in tomllib.loads(
            (document.path / "claims.toml").read_text(encoding="utf-8")
        ).items()
    ]


def test_what_is_said_and_computed_is_of_claims_that_there_are():
    for number, head, _ in said():
        assert [c for c, its in claims().items() if fnmatchcase(c, head) and its.document == number]
    for _, module in modules():
        named = {**getattr(module, "PRINTED", {}), **getattr(module, "FACTS", {})}
        assert set(named) <= set(module.OURS), module.__name__


def test_a_published_value_stands_in_one_place():
    computed = {c for _, module in modules() for c in getattr(module, "PRINTED", {})}
    written = [
        claim
        for claim in claims()
        for _, head, entry in said()
        if "published" in entry and fnmatchcase(claim, head)
    ]
    assert sorted([*computed, *written]) == sorted(claims())


def test_each_gap_of_a_text_has_a_value():
    """A reason and a note can be written whatever the verdict is that they are needed for."""
    for check in CHECKS:
        for text in (its for its in (check.why, check.note, check.lacking) if "{" in its):
            value = ours(check.claim)
            facts = check.facts(check.published, value)
            filled = text.format(published=check.published, ours=value, **facts)
            assert filled != text, check.claim


def test_a_check_stands_with_its_document_and_few_are_judged_by_reading():
    assert [check.claim for number, check in ALL if claims()[check.claim].document != number] == []
    assert sum(check.basis == READING for check in CHECKS) <= MOST_READINGS


@cache
def computed(claim):
    """What a check computes, once for all tests, and the processor's time it took."""
    check = next(check for check in CHECKS if check.claim == claim)
    start = process_time()
    return check.ours(), process_time() - start


def ours(claim):
    return computed(claim)[0]


@cache
def moment():
    """The time of a small exercise in algebra, the measure of what is slow here."""
    import sympy

    start = process_time()
    sympy.expand(sum(sympy.symbols("a b c d e"), 1) ** 10)
    return process_time() - start


def known(check):
    """The check with what it computed before."""
    value = ours(check.claim)
    return replace(check, ours=lambda: value)


def slack_of(check):
    """How far a printed number may be off; nothing where the comparison does not say."""
    return getattr(check.agree, "slack", lambda _: 0.0)


def compared(check, value):
    """The part of a printed value that is compared, as the check says."""
    if not check.unchecked:
        return value
    return {name: item for name, item in value.items() if name not in check.unchecked}


def agreeing(check):
    """Printed values that agree with ours: what is printed, if it does, and ours in its place."""
    for value in (check.published, ours(check.claim)):
        try:
            if check.agree(compared(check, value), compared(check, ours(check.claim))):
                yield value
        except TypeError:  # an interval of ours is no printed value
            assert value is not check.published


@pytest.mark.parametrize("number", DOCUMENTS)
def test_each_number_of_a_claim_decides(number):
    open_numbers = {check.claim: [*undecided(known(check))] for its, check in ALL if its == number}
    assert not {claim: values for claim, values in open_numbers.items() if values}


def undecided(check):
    """Printed values with another number that change no verdict, or are said to match."""
    assert check.basis in (COMPUTED, MEASURED, READING)
    assert check.otherwise in (ERRATUM, NOT_REPRODUCIBLE)
    for value in agreeing(check):
        said = replace(check, published=value).answer()
        others = list(perturbed(compared(check, value), slack_of(check)))
        assert others, f"{check.claim}: nothing is printed that could be wrong"
        for other in others:
            whole = {**value, **other} if check.unchecked else other
            record = replace(check, published=whole).answer()
            if (record.verdict, record.why) == (said.verdict, said.why) or record.verdict == MATCH:
                yield other


def leaves(value):
    """What a printed value says, names too, as a table prints it."""
    if isinstance(value, dict):
        yield from map(str, value)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield str(value)


@pytest.mark.parametrize("number", DOCUMENTS)
def test_each_number_that_a_check_reads_in_a_table_decides(number):
    for check in (check for its, check in ALL if its == number):
        forget(number)
        with tables() as read:
            record = check.answer()
        effects = {place: decides(number, check, place, record) for place in sorted(read)}
        forget(number)
        printed = set(leaves(check.published))
        weak = [
            x for x, what in effects.items() if what == "weak" and cell(number, x) not in printed
        ]
        assert not weak, f"{check.claim}: ours rests on it, and the claim holds without it"
        if coarse := [place for place, what in effects.items() if what == "coarse"]:
            assert check.part, f"{check.claim}: of last digits nothing is said: {coarse}"
            assert check.part in record.how, check.claim


TABLE_03 = "NMT standard, test_bleu: printed 1, ours 2; NMT optimised, test_bleu: printed 3, ours 1"
FOLLOWING = [
    ("000-RANK-table03", ("table03_nmt", 1, "test_bleu"), "22.9", TABLE_03),
    ("000-HEADS-table10", ("table10_nmt_heads", 1, "acc_pct"), "83.11", "standard: accuracy 8"),
    ("000-TIME-OPT", ("table03_nmt", 1, "epoch_time_s"), "60", "(Table 3, NMT, h = 4)"),
    ("000-SUP-45", ("table05_mnist_heads", 0, "avg_time_s"), "81.5", "(Table 5, MNIST, h = 1)"),
    ("004-T3-four", ("table03_accuracy", 3, "imdb_byte"), "66.0", "level on imdb_byte (66.0 both)"),
    ("004-ABS-nodeg", ("table03_accuracy", 4, "imdb_byte"), "67.5", "1.5 points on imdb_byte"),
]


@pytest.mark.parametrize(("claim", "place", "text", "words"), FOLLOWING)
def test_a_reason_follows_the_table(claim, place, text, words):
    check = next(check for check in CHECKS if check.claim == claim)
    with tables((place, text)):
        forget(claim[:3])
        reason = check.answer().why
    forget(claim[:3])
    assert words in reason
    assert words not in check.answer().why


def test_a_number_that_is_not_checked_is_named():
    for check in filter(attrgetter("unchecked"), CHECKS):
        assert set(check.unchecked) <= set(check.published), check.claim
        how = known(check).answer().how
        for name, why in check.unchecked.items():
            assert all(words in how for words in ("not checked", name, why)), check.claim


def test_the_committed_verdict_is_what_comes_out_with_its_reason():
    kept = {claim: verdict for number in DOCUMENTS for claim, verdict in committed(number).items()}
    answers = {check.claim: known(check).answer() for check in CHECKS}
    others = [claim for claim, answer in answers.items() if kept.get(claim) != answer.verdict]
    assert not others, "look at them, then: attnprof reproduce --accept"
    for check in CHECKS:
        answer = answers[check.claim]
        for value in (check.published, ours(check.claim)):
            assert json.loads(json.dumps(value)) == plain(value), check.claim
        # a difference needs its reason
        assert answer.verdict == MATCH or len(answer.why) > 20, check.claim
        assert check.lacking.partition("{")[0] in answer.why, check.claim
        assert answer.verdict == NOT_REPRODUCIBLE or not check.lacking, check.claim
        assert len(answer.how) > 10, check.claim
        assert "\n" not in answer.how, check.claim
        assert answer.verdict in VERDICTS, check.claim
        assert answer.basis != READING or "read in" in answer.how, check.claim


def test_our_value_in_the_place_of_the_printed_one_agrees():
    for check in (check for check in CHECKS if check.agree is not between):
        assert ours(check.claim) in list(agreeing(check)), check.claim
        printed = replace(known(check), published=ours(check.claim))
        assert check.lacking or printed.answer().verdict == MATCH, check.claim


def test_a_claim_has_the_fields_of_every_head_that_it_fits(tmp_path):
    (tmp_path / "claims.toml").write_text(
        '["004-T2-*"]\nhow = """by\n  counting"""\nagree = { rounded = 0 }\n'
        '[004-T2-d8]\nhow = "by hand"\nwhy = "it is {ours:.1f}, not {said}"\n'
    )
    module = SimpleNamespace(
        OURS={"004-T2-d8": lambda: 2.25, "004-T2-d16": lambda: 3.4},
        PRINTED={"004-T2-d8": 5, "004-T2-d16": 3},
        FACTS={"004-T2-d8": lambda said, _: {"said": said}},
    )
    loaded = load_checks(tmp_path / "claims.toml", [module])
    hand, counted = (loaded[f"004-T2-{d}"].answer() for d in ("d8", "d16"))
    assert (hand.verdict, hand.why, hand.how) == (ERRATUM, "it is 2.2, not 5", "by hand")
    assert (counted.verdict, counted.why, counted.how) == (MATCH, "", "by counting")


@pytest.mark.parametrize(
    "wrong", ["hwo = 'by'", "how = 3", "agree = { relativ = 1 }", "agree = 'roughly'"]
)
def test_a_claim_with_a_wrong_field_is_named_and_hides_no_other(tmp_path, wrong):
    path = tmp_path / "claims.toml"
    path.write_text(f"[004-EQ4]\n{wrong}\n[004-EQ5]\npublished = 2\nhow = 'by counting'\n")
    module = SimpleNamespace(OURS={"004-EQ4": lambda: 1, "004-EQ5": lambda: 2})
    loaded = load_checks(path, [module])
    assert loaded["004-EQ5"].answer().verdict == MATCH
    with pytest.raises(RequestError, match=r"claims\.toml, 004-EQ4: "):
        loaded["004-EQ4"].answer()


def test_an_interval_has_two_ends():
    limits = {"a": [2.0, 24.0], "b": [1.0, 24.0]}
    assert between({"a": 2.0, "b": 24.0}, limits)
    for wrong in ({"a": 1.9, "b": 2}, {"a": 3, "b": 1000}, {"a": 3}, {"a": 3, "b": 2, "c": 4}):
        assert not between(wrong, limits)


def plain(value):
    """Tuples as the lists JSON makes of them, names as text."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def test_no_check_is_slow():
    most = 20 * moment()
    assert not [check.claim for check in CHECKS if computed(check.claim)[1] >= most]


@pytest.mark.parametrize("module", [module for _, module in modules()], ids=lambda m: m.__name__)
def test_no_computed_check_names_a_verdict(module):
    """A verdict's name stands in ``otherwise`` alone, and never in code."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        named = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        named = node.id if isinstance(node, ast.Name) else named
        assert named not in (*VERDICTS, "MATCH", "ERRATUM", "NOT_REPRODUCIBLE"), node.lineno
    for _, head, entry in said():
        others = {name: value for name, value in entry.items() if name != "otherwise"}
        assert not set(map(str, others.values())) & set(VERDICTS), head
