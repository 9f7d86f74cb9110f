"""attnprof derive: formulas counted by hand, what is printed, what is refused."""

import re
from pathlib import Path

import pytest
import sympy

import attnprof as package
from attnprof import Workload
from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.trace.events import QUANTITIES
from attnprof.trace.solve import derive
from tests.cli.conftest import derived_once
from tests.trace import samples

FILE = samples.__file__
MINE = f"{FILE}:MyAttention"
CONTRACT = (
    "derive", MINE, "--arg", "d_model=h*d", "--arg", "num_heads=h", "--input", "x: B, N, h*d",
)  # fmt: skip
KEYS = {
    "phase", "quantity", "expression", "domain", "method", "verified_at", "uncounted", "value",
}  # fmt: skip
SYMBOLS = {name: sympy.Symbol(name, positive=True) for name in "BNhd"}
SHAPE = {"B": 3, "N": 70, "h": 4, "d": 8}
AT = "--at " + ",".join(f"{name}={size}" for name, size in SHAPE.items())
B, N, h, d = SYMBOLS.values()
#: Counted by hand: 4 projections of width (hd), two products of N·N·d a head, softmax, sqrt(d).
PRODUCTS = 4 * B * N * (h * d) ** 2 + 2 * B * h * N**2 * d
FORWARD = {
    "multiplications": PRODUCTS,
    "additions": PRODUCTS + 4 * B * N * h * d + 2 * B * h * N**2,
    "divisions": 2 * B * h * N**2,
    "exponentials": B * h * N**2,
    "other": B * h * N**2,
    "matmul_flops": 2 * PRODUCTS,
    "parameters": 4 * (h * d) ** 2 + 4 * h * d,
}
#: Each product twice; softmax's backward: 2 multiplications, 2 additions an entry; biases.
BACKWARD = {
    "multiplications": 2 * PRODUCTS + 2 * B * h * N**2,
    "additions": 2 * PRODUCTS + 2 * B * h * N**2 + 4 * B * N * h * d,
    "divisions": B * h * N**2,
    "exponentials": sympy.Integer(0),
    "other": sympy.Integer(0),
}


def read(text):
    return sympy.sympify(text, locals=SYMBOLS)


@pytest.fixture(autouse=True, scope="module")
def once():
    with derived_once(derive):
        yield


@pytest.fixture(scope="module")
def formulas():
    """The contract's example, once: record by phase and quantity."""
    how = {"args": ["d_model=h*d", "num_heads=h"], "inputs": ["x: B, N, h*d"], "at": SHAPE}
    derivation = package.derive(MINE, phases=("forward", "backward", "train"), **how)
    return derivation, {(r.phase, r.quantity): r for r in derivation.report().records}


@pytest.mark.parametrize(("phase", "expected"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_formulas_are_those_counted_by_hand(formulas, phase, expected):
    for quantity, formula in expected.items():
        derived = read(formulas[1][phase, quantity].expression)
        assert sympy.expand(derived - formula) == 0, quantity


def test_a_training_step_is_both_passes(formulas):
    records = formulas[1]
    for quantity in ("flops", "matmul_flops", "multiplications", "bytes_moved"):
        both = [read(records[phase, quantity].expression) for phase in ("forward", "backward")]
        assert sympy.expand(read(records["train", quantity].expression) - sum(both)) == 0


def test_values_are_the_formulas_at_the_shape(formulas):
    derivation, records = formulas
    sizes = {SYMBOLS[name]: size for name, size in SHAPE.items()}
    for (phase, quantity), record in records.items():
        assert isinstance(record.value, int)
        assert record.value == read(record.expression).subs(sizes)
        assert record.value == derivation.at(quantity, phase, **SHAPE)
    assert SHAPE in records["forward", "flops"].verified_at


def test_the_contract_holds_on_the_command_line(attnprof, formulas):
    ended = attnprof(CONTRACT, AT, "--format json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["command"] == "derive"
    assert ended.json["summary"]["symbols"] == ["B", "N", "h", "d"]
    records = ended.json["records"]
    assert [(r["phase"], r["quantity"]) for r in records] == [
        (phase, quantity) for phase in ("forward", "backward") for quantity in QUANTITIES
    ]
    for record in records:
        assert record.keys() >= KEYS
        assert record["method"] == "symbolic"
        assert record["uncounted"] == []
        assert len(record["verified_at"]) >= 3
        assert record["domain"]
        ours = formulas[1][record["phase"], record["quantity"]]
        assert (record["expression"], record["value"]) == (ours.expression, ours.value)


def test_without_a_shape_there_are_no_values_and_a_report_can_be_loaded_again(attnprof, tmp_path):
    words = "--phase forward --quantity multiplications,parameters -f json --output derived.json"
    ended = attnprof(CONTRACT, words)
    assert (ended.code, ended.out) == (0, "")
    records = Report.load(tmp_path / "derived.json").records
    assert [r.quantity for r in records] == ["multiplications", "parameters"]
    assert [r.value for r in records] == [None, None]
    assert records[0].expression == "2*B*N**2*d*h + 4*B*N*d**2*h**2"


def test_guesses_are_told_on_stderr_and_change_nothing(attnprof):
    guessed = attnprof(("derive", MINE), "--phase forward -f csv")
    given = attnprof(CONTRACT, "--phase forward -f csv")
    assert 'guessed: d_model=h*d, num_heads=h, "x: B, N, h*d"' in guessed.err
    assert guessed.out == given.out


def test_operations_add_up_to_the_total(attnprof):
    ended = attnprof(CONTRACT, AT, "--quantity flops,bytes_moved -f json")
    for phase, fields in ended.json["summary"]["phases"].items():
        flops, moved = (r for r in ended.json["records"] if r["phase"] == phase)
        for rows in (fields["operations"], fields["lines"]):
            whole = sum(read(r["flops"]) for r in rows)
            assert sympy.expand(whole - read(flops["expression"])) == 0
            assert sum(r["flops_value"] for r in rows) == flops["value"]
            assert sum(r["bytes_value"] for r in rows) == moved["value"]
        calls = {r["operation"]: r["calls"] for r in fields["operations"]}
        assert calls["bmm"] == (2 if phase == "forward" else 4)
        lines = [r["line"] for r in fields["lines"] if r["flops"] != "0"]
        assert all(line.startswith("samples.py:") for line in lines)


def test_the_peak_names_its_moment_and_its_polynomial(attnprof):
    ended = attnprof(CONTRACT, AT, "--phase backward --quantity peak_bytes -f json")
    peak = ended.json["summary"]["phases"]["backward"]["peak"]
    (record,) = ended.json["records"]
    assert peak["bytes"] == record["value"] == max(r["value"] for r in peak["regimes"])
    assert peak["part"] == "backward"
    assert peak["line"].startswith("samples.py:")
    regimes = {read(r["expression"]) for r in peak["regimes"]}
    assert set(read(record["expression"]).args) == regimes


@pytest.mark.parametrize("width", ["80", "160"])
def test_the_table_says_formula_domain_and_method(attnprof, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    ended = attnprof(CONTRACT, AT, "--phase forward")
    text = " ".join(ended.out.split())
    assert "FLOPs grow with N**2, about 4*B*N**2*d*h + 6*B*N**2*h for long inputs" in text
    assert "peak memory grows with N**2, about 8*B*N**2*h bytes" in text
    assert "holds for: B, N, h, d >= 2" in ended.out
    assert "method: symbolic" in ended.out
    assert re.search(r"runs agree at \d+ shapes: B from 2 to \d+, N from", text)
    assert "by operation" in ended.out
    assert max(map(len, ended.out.splitlines())) <= int(width)


def test_costs_by_module_and_by_line(attnprof, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    by_module = attnprof(CONTRACT, AT, "--phase forward --by module")
    shown = by_module.out.partition("by module")[2]
    names = re.findall(r"^(all|  itself|qkv|out) +\d", shown, re.MULTILINE)
    assert names[:4] == ["all", "  itself", "qkv", "out"]
    assert "Own peak: the most that is held at once of what it made itself." in shown
    assert max(map(len, by_module.out.splitlines())) <= 80
    fields = attnprof(CONTRACT, AT, "--phase forward -f json").json["summary"]["phases"]["forward"]
    rows = {row["module"]: row for row in fields["modules"]}
    parts = [rows["out"]["flops_value"], rows["qkv"]["flops_value"], rows[""]["flops_itself_value"]]
    assert sum(parts) == sum(row["flops_value"] for row in fields["operations"])
    assert rows["qkv"]["parameters"] == "3*d**2*h**2 + 3*d*h"
    assert rows["out"]["peak_bytes"] == "4*B*N*d*h"
    by_line = attnprof(("derive", f"{FILE}:attention"), "--phase forward --by line")
    assert "by line" in by_line.out
    assert "samples.py:" in by_line.out.partition("by line")[2]
    without = attnprof(("derive", f"{FILE}:attention"), "--phase forward --by module")
    assert without.out.endswith("It has no submodules.\n")


def test_latex_can_be_pasted(attnprof):
    ended = attnprof(CONTRACT, "--latex --phase forward --quantity matmul_flops")
    lines = ended.out.splitlines()
    assert lines[-1] == "4 B N^{2} d h + 8 B N d^{2} h^{2}"
    assert all(line.startswith("%") for line in lines[:-1])


def test_the_page_goes_operation_by_operation(attnprof):
    ended = attnprof(CONTRACT, AT, "-f markdown")
    page = ended.out
    source = Path(FILE).read_text(encoding="utf-8").splitlines()
    line = 1 + next(number for number, text in enumerate(source) if "softmax" in text)
    assert page.startswith(f"# {MINE}\n")
    for words in ("## forward", "## backward", "### By line", "### By module",
                  "### Operation by operation", "Verified by runs at", "`B, N, h, d >= 2`",
                  "- The peak is the largest of:",
                  f"| samples.py:{line} | forward | _softmax | `5*B*N**2*h` |"):  # fmt: skip
        assert words in page, words
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


@pytest.mark.parametrize(("words", "quantity", "expression"), [
    (f"{FILE}:attention", "matmul_flops", "4*B*N**2*d*h"),
    ("standard --scope core --set bias=false", "matmul_flops", "4*B*N**2*d*h"),
    ("torch.nn:Linear --arg in_features=h*d --arg out_features=4*h*d --input input:N,h*d",
     "flops", "8*N*d**2*h**2 + 4*N*d*h"),
])  # fmt: skip
def test_a_function_and_a_mechanism_and_a_package(attnprof, words, quantity, expression):
    ended = attnprof(f"derive {words} --phase forward --quantity {quantity} -f json")
    assert [record["expression"] for record in ended.json["records"]] == [expression]


def test_code_that_fails_is_told_in_its_own_words(attnprof):
    ended = attnprof(("derive", f"{FILE}:Broken"))
    assert (ended.code, ended.out) == (2, "")
    assert "ValueError: no such width (samples.py:" in ended.err
    assert "Traceback" not in ended.err


def test_code_that_reads_a_value_cannot_be_derived(attnprof):
    ended = attnprof(("derive", f"{FILE}:Reading"), "--phase forward --at B=2,N=8,h=2,d=4")
    assert (ended.code, ended.out) == (3, "")
    assert "depends on the value of a tensor" in ended.err


def test_python_passes_classes_and_modules_and_a_workload(formulas):
    shape = Workload(64, 4, 8, batch_size=2)
    training = package.derive(samples.made, shape.with_(phase="train"))
    assert list(training.phases) == ["train"]
    ready = package.derive(samples.ready, shape, phases=["forward"])
    assert ready.symbols == ("B", "N")
    assert ready.at(B=2, N=64) == formulas[0].at(B=2, N=64, h=4, d=8)
    assert ready.expression("parameters") == 4 * 32 * 32 + 4 * 32
    assert ready.report().records[0].value == ready.at("multiplications", B=2, N=64)
    with pytest.raises(RequestError, match="does not run"):
        package.derive(samples.ready, Workload(64, 4, 16))
    with pytest.raises(RequestError, match="no decoding step"):
        package.derive(samples.ready, phases=["decode"])


def test_what_cannot_be_symbolic_is_interpolated_and_says_so(attnprof):
    words = ("derive", f"{FILE}:Through", "--arg", "dim=d", "--input", "x: N, d")
    ended = attnprof(words, "--at N=16,d=8 --phase forward -f json")
    records = {r["quantity"]: r for r in ended.json["records"]}
    assert {r["method"] for r in records.values()} == {"interpolated"}
    assert sympy.expand(read(records["flops"]["expression"]) - 2 * N * d**2) == 0
    assert records["flops"]["value"] == 2 * 16 * 8 * 8
    assert len(records["flops"]["verified_at"]) >= 3
    fields = ended.json["summary"]["phases"]["forward"]
    assert fields["peak"].get("bytes") in (None, records["peak_bytes"]["value"])
    assert any("numpy" in note for note in fields["notes"])


def test_a_size_of_one_is_its_own_case_also_where_others_are_not_asked(attnprof):
    words = "--at B=1 --at N=6 --phase forward --quantity bytes_moved,exponentials -f json"
    moved, exponentials = attnprof(("derive", MINE), words).json["records"]
    assert "B = 1" in moved["domain"]
    assert (exponentials["expression"], exponentials["value"]) == ("N**2*h", None)


def test_without_a_backward_pass_forward_is_derived_and_said(attnprof):
    ended = attnprof(("derive", f"{FILE}:Silent"), "-f json")
    assert {record["phase"] for record in ended.json["records"]} == {"forward"}
    assert f"only the forward pass: {FILE}:Silent has no backward pass" in ended.err
    ended = attnprof(("derive", f"{FILE}:Silent"), "--phase backward")
    assert ended.code == 2


def test_a_file_of_arguments_gives_numbers_and_arguments_free_them(attnprof, tmp_path):
    file = tmp_path / "sizes.json"
    file.write_text('{"d_model": 32, "num_heads": 4}')
    how = f"--config {file} --phase forward --quantity parameters -f json"
    ended = attnprof(("derive", MINE), how)
    assert read(ended.json["records"][0]["expression"]) == 4 * 32 * 32 + 4 * 32
    freed = attnprof(("derive", MINE), f"{how} --arg d_model=4*d")
    assert sympy.expand(read(freed.json["records"][0]["expression"]) - 64 * d**2 - 16 * d) == 0


def test_a_peak_of_even_routing_is_shown_as_that(attnprof):
    path = Path(__file__).parents[1] / "trace/test_routing.py"
    done = attnprof("derive", f"{path}:Experts", "--arg", "width=4", "--input", ("x: N, 4",),
                    "--phase", "forward")  # fmt: skip
    assert re.search(r"peak memory +with even routing, ", done.out)
    assert "where some experts get more rows the peak is higher" in " ".join(done.out.split())
