"""``crossover``: the published numbers, ours against every integer, and its answers."""

import numpy as np
import pytest
import sympy

import attnprof as package
from attnprof import registry
from attnprof.closed_form import quantities
from attnprof.crossovers.sides import Contest, CostSource, Meeting, contests
from attnprof.crossovers.solve import bisected, solved
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.workload import Workload

TABLE_2 = {8: (73, 47), 16: (273, 159), 32: (1057, 574), 64: (4161, 2174), 128: (16513, 8446)}
PAIRS = [
    ("taylor-direct", "taylor-efficient", "core", "forward", False),
    ("taylor-direct", "taylor-efficient", "layer", "train", False),
    ("standard", "efficient", "layer", "backward", False),
    ("standard", "linformer", "core", "forward", False),
    ("sdpa", "standard", "layer", "train", True),
    ("standard", "longformer", "core", "forward", False),
    ("optimised", "super", "layer", "forward", False),
]


def test_published_crossovers_are_those_of_the_paper_and_drawn(attnprof, tmp_path):
    words = f"crossover --d 8,16,32,64,128 --kind published -f json --plot {tmp_path}/figure.svg"
    ended = attnprof(words)
    assert f"{tmp_path}/figure.svg" in ended.err
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    rows = ended.json["records"]
    by_width = {(row["head_dim"], row["metric"]): row for row in rows}
    for d, (flops, memory) in TABLE_2.items():
        assert by_width[d, "flops"]["first_seq_len"] == flops
        assert by_width[d, "memory"]["first_seq_len"] == memory
        assert by_width[d, "flops"]["crossover_seq_len"] == d * d + d + 0.5
        assert by_width[d, "flops"]["closed_form"] == "d**2 + d + 1/2"
        form = sympy.sympify(by_width[d, "memory"]["closed_form"])
        root = "(d**2 + 2*d + 1 + sqrt(d**4 + 12*d**3 + 14*d**2 + 4*d + 1))/4"
        assert sympy.expand(form - sympy.sympify(root)) == 0
        assert by_width[d, "memory"]["unit"] == "entries"
        assert by_width[d, "flops"]["verdict"] == "crosses"
        assert by_width[d, "flops"]["cheaper_above"] == "taylor-efficient"


def test_memory_of_our_own_is_in_bytes_and_of_a_dtype(attnprof):
    rows = attnprof("crossover --d 16 --kind formula --dtype float16 -f json").json["records"]
    units = {(row["metric"], row["unit"], row["dtype"]) for row in rows}
    assert units == {("flops", "flops", "float16"), ("memory", "bytes", "float16")}


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: "-".join(map(str, case)))
def test_every_integer_agrees(case):
    """The signs of the integer costs, one length after the other, have the same crossings."""
    a, b, scope, phase, causal = case
    lengths = np.arange(1, 90)
    for d in (1, 6):
        workload = Workload(lengths, 2 if scope == "layer" else 1, d, causal=causal, phase=phase)
        sides = registry.get(a), registry.get(b)
        first, second = (side.cost(workload, scope) for side in sides)
        more = {"flops": first.flops - second.flops, "memory": first.peak() - second.peak()}
        meeting = Meeting(*sides, workload.with_(seq_len=1), scope)
        for contest in contests(meeting, ["formula"]):
            crossings, form = solved(meeting, contest, d)
            signs = np.sign(np.broadcast_to(more[contest.metric], lengths.shape)).tolist()
            expected = [_expected(crossings, n) for n in lengths.tolist()]
            pairs = zip(signs, expected, strict=True)
            assert [(s, e) for s, e in pairs if e is not None and s != e] == []
            if form:
                value = float(sympy.sympify(form).subs(sympy.Symbol("d"), d))
                assert value == pytest.approx(float(crossings.roots[-1].at), rel=1e-9)


#: Costs that rise by steps: the wider the steps, the further apart the crossings.
STEPPED = [
    ("taylor-efficient@impl=symmetric", "optimised", "layer", Workload(1, 1, 64, causal=True)),
    ("kimi-delta@1+linear@1", "moba@block=32@top=4", "layer", Workload(1, 1, 16, causal=True)),
    ("nsa", "neural", "core", Workload(1, 2, 4, 3, phase="decode")),
]


@pytest.mark.parametrize(("a", "b", "scope", "workload"), STEPPED, ids=str)
def test_no_change_of_order_is_missed_between_steps(a, b, scope, workload):
    sides, last = [*map(registry.get, (a, b))], 4096
    (contest,) = contests(Meeting(*sides, workload, scope), ["formula"], ["flops"])
    crossings, _ = solved(Meeting(*sides, workload, scope), contest, workload.head_dim)
    at = [root.ceiling for root in crossings.roots]
    near = {length + more for length in at for more in (-1, 0) if 1 < length + more <= last}
    lengths = np.arange(2, last + 1)
    costs = [side.cost(workload.with_(seq_len=lengths), scope).flops for side in sides]
    differences = np.broadcast_to(costs[0] - costs[1], lengths.shape).tolist()
    for length in near:  # arrays are the integers one by one
        first, second = (s.cost(workload.with_(seq_len=length), scope).flops for s in sides)
        assert first - second == differences[length - 2]
    for length, difference in enumerate(differences, 2):
        expected = _expected(crossings, length)
        assert expected is None or np.sign(difference) in (0, expected), length
    assert len(at) > 1


def _expected(crossings, length):
    """The sign of the run a length lies in; None where it lies on a boundary."""
    if length == 1 or any(root.at == length for root in crossings.roots):
        return None  # a tie at length 1 belongs to what follows
    inside = [run for run in crossings.runs if run.start.at <= length]
    return inside[-1].sign


def test_polynomials_and_bisection_agree():
    pair = map(registry.get, ("taylor-direct", "taylor-efficient"))
    meeting = Meeting(*pair, Workload(1, 1, 12))
    for contest in contests(meeting):
        exact, _ = solved(meeting, contest, 12)
        first, second = contest.costs
        searched = bisected(
            lambda n, f=first, s=second: f.cost(*meeting.at(n, 12)) - s.cost(*meeting.at(n, 12))
        )
        assert searched.first == exact.first
        assert searched.verdict == exact.verdict


STUBS = {
    "crosses": (lambda w: w.seq_len**2, lambda w: 10 * w.seq_len + w.head_dim, 11),
    "never": (lambda w: w.seq_len, lambda w: 2 * w.seq_len + 1, None),
    "always": (lambda w: 2 * w.seq_len, lambda w: w.seq_len, 1),
    "several": (lambda w: w.seq_len**3 + 90 * w.seq_len, lambda w: 20 * w.seq_len**2, 14),
    "floors": (lambda w: 3 * w.seq_len, lambda w: 64 * -(-w.seq_len // 64) + 640, 342),
    "far": (lambda w: w.seq_len**2 // 7, lambda w: 10**9 * w.seq_len, 7 * 10**9),
}


@pytest.mark.parametrize("name", STUBS)
def test_answers_of_stub_costs(name):
    a, b, first = STUBS[name]
    meeting = Meeting(registry.get("standard"), registry.get("sdpa"), Workload(1, 1, 5))
    costs = tuple(CostSource(lambda _, w, cost=cost: cost(w)) for cost in (a, b))
    crossings, _ = solved(meeting, Contest("flops", "formula", costs), 5)
    dearer = [n for n in range(1, 3000) if a(Workload(n, 1, 5)) < b(Workload(n, 1, 5))]
    assert crossings.first_seq_len == first
    if name in ("crosses", "never", "always", "several"):
        assert crossings.verdict == name
    if name in ("crosses", "several", "floors"):
        assert first == max(dearer) + 1


def test_the_python_interface_gives_the_report():
    report = package.crossover("taylor-direct", "taylor-efficient", head_dim=64)
    first = report.records[0]
    assert (first.first_seq_len, first.closed_form) == (4161, "d**2 + d + 1/2")
    with pytest.raises(RequestError, match="head_dim"):
        package.crossover("taylor-direct", "taylor-efficient", head_dim=0)
    with pytest.raises(RequestError, match="flops"):
        package.crossover("taylor-direct", "taylor-efficient", metrics=["flop"])


@pytest.mark.parametrize("names", [("taylor-direct", "taylor-efficient"), ("standard", "linear")])
def test_flops_and_memory_share_the_play_of_a_mechanism(names, monkeypatch):
    played, cost = [], Mechanism.cost

    def counted(self, workload, scope="layer"):
        n, d = workload.seq_len, workload.head_dim
        sample = getattr(getattr(n, "branches", None), "sample", n)
        if not isinstance(n, np.ndarray):  # tables of many lengths are too large to be kept
            played.append((self.name, sample, isinstance(d, int)))
        return cost(self, workload, scope)

    quantities._table.cache_clear()
    monkeypatch.setattr(Mechanism, "cost", counted)
    report = package.crossover(*names, head_dim=48, kinds="formula")
    assert {row.metric for row in report.records} == {"flops", "memory"}
    assert len(played) == len(set(played))


# -- --over: another size than the length ----------------------------------------
def test_the_answer_comes_first_and_fits_in_80_columns(attnprof, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "over.png"
    words = f"crossover standard longformer --over window --seq 256,1024 --plot {path}"
    out = attnprof(words).out
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert all(len(line) <= 80 for line in out.splitlines())
    said = " ".join(out.split("\n\n")[0].split())
    assert said.startswith("At 256 and 1,024 tokens, standard needs fewer FLOPs than longformer")
    assert "from window 191 (at 256) to 812 (at 1,024) on" in said
    assert "over window" in out


def test_json_names_what_varies_and_keeps_keys_of_lengths_for_lengths(attnprof):
    for row in attnprof("crossover standard linear --over batch -f json").json["records"]:
        assert (row["over"], row["seq_len"], row["head_dim"], row["num_heads"]) == (
            "batch", 1024, 64, 1,
        )  # fmt: skip
        assert row["batch_size"] is row["crossover_seq_len"] is row["first_seq_len"] is None
    for row in attnprof("crossover standard linear -f json").json["records"]:
        assert (row["over"], row["seq_len"]) == ("seq", None)
        assert row["crossover_value"] == row["crossover_seq_len"]
        assert row["first_value"] == row["first_seq_len"]


def test_heads_share_a_models_width_unless_theirs_is_typed(attnprof, tmp_path):
    command = "crossover taylor-direct taylor-efficient --over heads --kind formula -f json"
    shared = attnprof(command, f"--d-model 256 --plot {tmp_path}/heads.png").json["records"]
    assert (tmp_path / "heads.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {(row["d_model"], row["head_dim"]) for row in shared} == {(256, None)}
    assert all(256 % row["first_value"] == 0 for row in shared)
    derived_rows = attnprof(command, "--d 32").json["records"]
    assert {(row["d_model"], row["head_dim"], row["verdict"]) for row in derived_rows} <= {
        (None, 32, "never"), (None, 32, "always"),
    }  # fmt: skip


def test_decoding_compares_a_cache_with_a_fixed_state(attnprof):
    ended = attnprof("crossover standard linear --phase decode --d 32 -f json")
    (state,) = [row for row in ended.json["records"] if row["metric"] == "state"]
    # two rows of d a token against d² + d sums
    assert state["crossover_seq_len"] == (32 * 32 + 32) / (2 * 32)
    assert (state["unit"], state["cheaper_above"]) == ("bytes", "linear")


def test_a_crossover_has_no_more_digits_than_a_float_knows(attnprof):
    ended = attnprof("crossover --d 1000000000 --kind published --metric flops")
    root = 10**18 + 10**9  # d² + d + 1/2, from token root + 1 on
    (row,) = [row for row in ended.out.splitlines() if "published  " in row and "FLOPs" in row]
    assert f"{root + 1:,}" in row
    assert "1.000000001e+18" in row
    assert f"{root:,}" not in row
    exact = attnprof("crossover --d 64 --kind published --metric flops").out
    assert "4,160.50" in exact
