"""What ``import attnprof`` gives: documented, with examples that hold; tables in notebooks."""

from __future__ import annotations

import doctest
import inspect
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof.errors import CannotRunError
from attnprof.record import MechanismRecord, Report
from attnprof.trace.report.derivation import Derivation

PUBLIC = {name: getattr(attnprof, name) for name in attnprof.__all__ if name != "__version__"}
PUBLIC["Derivation"] = Derivation


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_that_holds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    public = PUBLIC[name]
    known = {"attnprof": attnprof, "torch": torch}
    tests = doctest.DocTestFinder(recurse=False).find(public, name, globs={**PUBLIC, **known})
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False) == (0, len(tests[0].examples))
    assert tests[0].examples
    for method, member in vars(public).items() if inspect.isclass(public) else ():
        if not method.startswith("_") and (callable(member) or isinstance(member, property)):
            assert inspect.getdoc(getattr(public, method)), method


class Cells(HTMLParser):
    """The texts of a table's cells; tags that are not ours would be seen."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.texts.append(data)


OURS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "code", "div"}


def test_a_cost_table_is_shown_in_short_numbers_and_framed_exactly():
    table = attnprof.cost("standard", attnprof.Workload(1024, num_heads=8, head_dim=64))
    shown = Cells(table._repr_html_())
    assert {"4.34 G", "70.00 MiB", "8×1024×1024"} <= {*shown.texts}
    assert shown.tags <= OURS
    frame = table.to_frame()
    assert frame.flops.sum() == table.flops
    assert frame.held.max() == table.peak()


def test_an_editor_completes_the_public_names():
    assert {*attnprof.__all__} == {*dir(attnprof)}


@pytest.mark.parametrize("mechanism", ["standard", "mamba2", "reformer"])
def test_arrays_of_any_whole_numbers_are_counted_exactly(mechanism):
    lengths = [64, 3_000_000, 2_000_000_000]
    one, many = (
        [attnprof.cost(mechanism, attnprof.Workload(n, 4, 16, phase="train")) for n in sizes]
        for sizes in (lengths, [np.array(lengths, np.int32)])
    )
    assert [table.flops for table in one] == [*many[0].flops]
    assert [table.peak() for table in one] == [*many[0].peak()]


def test_symbols_are_shown_as_formulas():
    n = sympy.Symbol("N", positive=True)
    table = attnprof.cost("standard", attnprof.Workload(n, num_heads=1, head_dim=4), "core")
    assert f"<code>{sympy.sstr(table.flops)}</code>" in table._repr_html_()


def test_a_derivation_is_shown_with_its_domain_and_framed():
    derivation = attnprof.derive(torch.square, inputs={"x": "N, d"}, phases="forward")
    shown = derivation._repr_html_()
    assert "<code>N*d</code>" in shown
    assert "forward holds for: N, d &gt;= 2" in shown
    assert "N*d" in derivation.to_frame().expression.tolist()


def test_names_are_escaped_and_what_all_records_share_is_said_once():
    bad = "<script>x</script>"
    many = {f"k{place}": place for place in range(20)}
    rows = [MechanismRecord(mechanism=bad, title="a & b", params=many | {"k": n}) for n in (1, 2)]
    shown = Report("list", rows * 40)._repr_html_()
    parsed = Cells(shown)
    assert parsed.tags <= OURS
    assert bad in "".join(parsed.texts)
    assert shown.count("a &amp; b") == 1
    assert "see to_frame() for 20 more records, params" in shown
    assert Cells(Report("list", [])._repr_html_()).texts[1:2] == ["list: 0 records"]


def test_without_pandas_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CannotRunError, match="pip install pandas"):
        Report("list", [MechanismRecord(mechanism="linear")]).to_frame()
