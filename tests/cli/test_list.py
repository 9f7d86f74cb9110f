"""attnprof list and the registry behind it: shipped, plug-ins, files."""

from importlib.metadata import EntryPoint

import pytest

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.mechanisms.standard import Standard
from attnprof.record import Report

#: A mechanism in tensor methods, and one that writes stages and has no torch side.
PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from attnprof.mechanism import Mechanism
from attnprof.mechanisms.standard import Standard

@dataclass(frozen=True, kw_only=True)
class Mine(Standard):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "My attention"

@dataclass(frozen=True, kw_only=True)
class Bare(Mechanism):
    name: ClassVar[str] = "bare"

    def core(self, tape, workload, q, k, v):
        return tape.view(q, *q.shape)

class Other: ...
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def entry_points(monkeypatch):
    def install(*points):
        group = registry.ENTRY_POINTS
        made = [EntryPoint(name, value, group) for name, value in points]
        monkeypatch.setattr(registry, "_entry_points", lambda: made)

    return install


def test_every_mechanism_is_listed_with_its_parameters(attnprof):
    records = attnprof("list", "--format", "json").json["records"]
    assert [r["mechanism"] for r in records] == registry.names()
    for record in records:
        assert record["params"] == registry.get(record["mechanism"]).params
        assert record["time_order"]
        assert record["memory_order"]
        assert record["document"]
        assert record["skipped"] is None


def test_plug_ins_are_rows_and_are_not_imported(attnprof, entry_points):
    entry_points(("fine", "json:Class"), ("lost", "no_such_package.spec:Class"))
    rows = {r["mechanism"]: r for r in attnprof("list", "--format", "json").json["records"]}
    assert "loaded when asked for" in rows["fine"]["skipped"]
    assert "no module 'no_such_package'" in rows["lost"]["skipped"]
    assert rows["standard"]["skipped"] is None


def test_a_broken_plug_in_is_named_where_it_is_asked_for(entry_points):
    entry_points(("lost", "no_such_package.spec:Class"), ("odd", "json:JSONDecoder"))
    for name, said in {"lost": "plug-in 'lost'", "odd": "not a mechanism"}.items():
        with pytest.raises(RequestError, match=said):
            registry.get(name)


def test_a_plug_in_costs_and_builds(attnprof, entry_points, file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    entry_points(("mine", "mine:Mine"))
    theirs = attnprof("cost --attention mine --seq 32 --quantity flops -f csv").csv
    ours = attnprof("cost --attention standard --seq 32 --quantity flops -f csv").csv
    assert [row["value"] for row in theirs] == [row["value"] for row in ours]
    assert "mine" in registry.module_of("mine").CORES


def test_a_file_without_a_torch_side_says_what_it_needs(file):
    with pytest.raises(RequestError, match="CORES"):
        registry.module_of(f"{file}:Bare")


@pytest.mark.parametrize(("name", "hint"), [
    ("nowhere.py:Mine", "there is no file"), ("{file}:Mne", "did you mean Mine"),
    ("{file}:Other", "not a mechanism"), ("wrong.py:X", "ZeroDivisionError"),
])  # fmt: skip
def test_a_file_that_fails_says_why(attnprof, file, name, hint):
    file.with_name("wrong.py").write_text("1 / 0")
    ended = attnprof("cost", "--attention", name.format(file=file))
    assert ended.code == 2
    assert hint in ended.err


# -- --verify: claimed growth against what torch counts ---------------------------
@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["standard", "me"])


def test_every_mechanism_and_variant_has_its_three_records(attnprof, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["standard", "longformer"])
    ended = attnprof("list --verify -f json")
    assert ended.code == 0
    records = ended.json["records"]
    shown = ["standard", "longformer", "longformer impl=dense-mask"]
    quantities = ("matmul_flops", "flops", "peak_bytes")
    assert [(r["variant"], r["quantity"]) for r in records] == [
        (label, quantity) for label in shown for quantity in quantities
    ]
    verdicts = {r["variant"]: r["verdict"] for r in records if r["quantity"] == "flops"}
    assert verdicts == {label: "grows faster" if "dense" in label else "agrees" for label in shown}
    summary = ended.json["summary"]
    assert summary["faster"] == ["longformer impl=dense-mask"]
    assert (summary["unexpected"], summary["miscounted"]) == ([], [])


@pytest.mark.usefixtures("few")
def test_the_table_says_what_torch_counts_and_the_file_loads_again(attnprof, tmp_path):
    table = attnprof("list --verify").out
    assert "agrees" in table
    assert "no matrix product for torch to count" in table
    path = tmp_path / "growth.json"
    assert attnprof("list", "--verify", "-f", "json", "-o", str(path)).code == 0
    assert Report.load(path).records[0].found_exponent == 2


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("order", ["time_order", "memory_order"])
def test_a_mechanism_that_grows_faster_than_it_claims_fails_the_check(attnprof, monkeypatch, order):
    monkeypatch.setattr(Standard, order, "N")
    ended = attnprof("list --verify")
    assert ended.code == 1
    assert "GROWS FASTER" in ended.out
    assert "does not say so" in ended.out
