"""Exact comparison: a changed line is caught, named and told once; unchanged code gives nothing."""

import re
from functools import cache

import pytest

from attnprof.gate.changes import causes, changes
from attnprof.gate.counts import Counted, Operation, count
from attnprof.gate.exact import compare
from attnprof.gate.rules import TOGETHER, VERDICTS, exit_code
from attnprof.record import CheckRecord

from .samples import MODULES, PLAIN, request_of, slipped


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """A function that counts a text, once, as a file of this name."""

    @cache
    def counting(text, name, *, formulas=False, **changes):
        request = request_of(tmp_path_factory.mktemp("text"), text, name, **changes)
        counts = count(request, formulas=formulas)
        assert counts.error is None, counts.error
        return counts

    return counting


@pytest.fixture
def compared(counting):
    """Records of two texts of one module, by metric."""

    def compared(before, after, **how):
        records = compare("case", counting(before, "old", **how), counting(after, "new", **how))
        return {record.metric: record for record in records}

    return compared


def verdicts(records):
    return {record.verdict for record in records.values()}


#: Modules in a phase each, one of them in both.
IN_PHASES = [
    ("plain", "forward"), ("plain", "train"), ("separate", "train"), ("summed", "forward"),
]  # fmt: skip


def in_two_modules(rows):
    """Every row with two of the modules in turn."""
    turns = [(place, turn) for place in range(len(rows)) for turn in (place, place + 1)]
    return [(*IN_PHASES[turn % len(IN_PHASES)], rows[place]) for place, turn in turns]


#: Slips, and what is said of them by metric.
SAID = [
    ("contiguous", {"bytes_moved": [
        r"aten\.clone ×1 more at new\.py:{line} \(float32 2×2×96×96 \(N×N\)\)"]}),
    ("float64", {"bytes_moved": [r"upcast: aten\._to_copy to float64 ×1 more at new\.py:{line}"]}),
    ("mask", {"bytes_moved": [
        r"aten\.masked_fill ×1 more at new\.py:{line} .*\(N×N\)",
        r"aten\.triu ×1 more at new\.py:{line} \(float32 96×96 \(N×N\)\)"]}),
    ("scaling", {"multiplications": [
        r"aten\.mul ×1 more at new\.py:{line} .*36,864 more FLOPs"]}),
]  # fmt: skip


@pytest.mark.parametrize(("module", "phase", "said"), in_two_modules(SAID))
def test_one_line_too_many_is_caught_and_named(compared, module, phase, said):
    slip, by_metric = said
    changed, line = slipped(MODULES[module], slip)
    records = compared(MODULES[module], changed, phase=phase)
    assert exit_code(verdicts(records)) == 1
    for metric, patterns in by_metric.items():
        record = records[metric]
        assert record.verdict == "regressed"
        for says in patterns:
            assert re.search(says.format(line=line), record.why), record.why
        assert record.current > record.baseline
        assert record.ratio == record.current / record.baseline
        assert record.place == f"new.py:{line}"
    assert records["dispatched_operations"].verdict == "regressed"


HARMLESS = {
    "lines shift": lambda text: "# one\n# two\n" + text.replace("    def f", "\n\n    def f"),
    "names change": lambda text: re.sub(r"\b([wy])\b", r"\1_new", text),
    "a docstring": lambda text: text.replace("    def f", '    "Attention."\n\n    def f'),
    "lines split": lambda text: re.sub(
        r"( [wy] =) (.*)\n", r"\1 (\n            \2\n        )\n", text
    ),
}


@pytest.mark.parametrize(("module", "phase", "harmless"), in_two_modules([*HARMLESS]))
def test_harmless_edits_give_no_difference(compared, module, phase, harmless):
    text = HARMLESS[harmless](MODULES[module])
    assert text != MODULES[module]
    records = compared(MODULES[module], text, phase=phase)
    assert {(record.verdict, record.why) for record in records.values()} == {("ok", "")}


def test_what_is_undone_is_an_improvement(compared):
    changed, line = slipped(PLAIN, "contiguous")
    records = compared(changed, PLAIN)
    assert verdicts(records) == {"ok", "improved"}
    assert "aten.clone ×1 fewer was at" in records["bytes_moved"].why
    assert "moves 288.00 KiB less" in records["bytes_moved"].why
    assert records["bytes_moved"].place == f"old.py:{line}"


@pytest.mark.parametrize(("slip", "said"), [
    ("scaling", {"multiplications": "+ B·N²·h multiplications", "flops": "+ B·N²·h FLOPs"}),
    ("contiguous", {"bytes_moved": "+ 8·B·N²·h bytes moved"}),
    ("mask", {"bytes_moved": "+ 8·B·N²·h + ", "peak_bytes": "more for longer sequences"}),
    ("float64", {"bytes_moved": "+ 32·B·N²·h bytes moved"}),
])  # fmt: skip
def test_formulas_tell_the_difference(compared, slip, said):
    changed, line = slipped(PLAIN, slip)
    records = compared(PLAIN, changed, formulas=True)
    for metric, says in said.items():
        record = records[f"formula:{metric}"]
        assert (record.verdict, record.place) == ("regressed", f"new.py:{line}")
        assert says in record.why
    assert records["formula:parameters"].verdict == "ok"
    assert records["formula:parameters"].baseline == "4*d**2*h**2 + 4*d*h"


def test_equal_formulas_are_ok_in_other_words_too():
    one = Counted({"flops": 10}, formulas={"flops": "N*(N + 1)/2"}, sizes={"N": 4})
    other = Counted({"flops": 10}, formulas={"flops": "N**2/2 + N/2"}, sizes={"N": 4})
    records = [(r.metric, r.verdict, r.why) for r in compare("case", one, other)]
    assert records == [("flops", "ok", ""), ("formula:flops", "ok", "")]


@pytest.mark.parametrize(("before", "after", "verdict", "why"), [
    ("N", "2*B*N**2*h + N", "regressed", "+ 2·B·N²·h FLOPs"),
    ("0", "d", "regressed", "+ d FLOPs"),
    ("N**2", "N**2 - N", "improved", "− N FLOPs"),
    ("100*N", "N**2", "regressed", "+ N² − 100·N FLOPs: fewer at this shape, more for longer"),
    ("N**2", "100*N", "regressed", "− N² + 100·N FLOPs: more at this shape, fewer for longer"),
    ("64*N", "N**2", "regressed", "the same at this shape, more for longer sequences"),
    ("N**2", "64*N", "improved", "the same at this shape, fewer for longer sequences"),
    ("N*d", "2*N*h", "improved", "− N·d + 2·N·h FLOPs"),
    ("16*N*h", "4*N*d", "ok", "the same at this shape and for larger sizes"),
    ("Max(N**2, 3*N)", "Max(N**2, 4*N)", "ok", "another branch"),
    ("Max(N**2, 99*N)", "Max(N**2, 98*N)", "improved", "− N FLOPs in the branch of this shape"),
    ("Max(N**2, N*d)", "Max(2*N**2, N*d)", "regressed", "+ N² FLOPs in the branch of this"),
    ("Piecewise((N, N <= 100), (N**2, True))", "N", "improved", "fewer for longer sequences"),
    ("floor(N/3)", "ceiling(N/3)", "regressed", "− floor(N/3)"),
])  # fmt: skip
def test_a_formula_is_worse_where_it_is_more_or_grows_faster(before, after, verdict, why):
    sizes = {"B": 1, "N": 64, "h": 4, "d": 16}
    sides = [Counted(formulas={"flops": text}, sizes=sizes) for text in (before, after)]
    (record,) = compare("case", *sides)
    assert (record.verdict, record.baseline, record.current) == (verdict, before, after)
    assert why in record.why


def test_a_formula_that_is_gone_is_not_comparable_and_a_new_one_new():
    with_one = Counted(formulas={"flops": "N"})
    without = Counted(no_formula="flops: it reads values")
    (gone,) = compare("case", with_one, without)
    assert gone.verdict == "not-comparable"
    assert "it reads values" in gone.why
    (new,) = compare("case", without, with_one)
    assert new.verdict == "new"
    assert compare("case", with_one, Counted()) == []  # which was not asked for any


GOOD, MISSING = Counted({"flops": 1}), Counted(error="there is no file", missing=True)
FAILED = Counted(error="ValueError: no")


@pytest.mark.parametrize(("baseline", "current", "verdict", "code"), [
    (None, GOOD, "new", 0), (MISSING, GOOD, "new", 0), (GOOD, None, "missing", 3),
    (GOOD, MISSING, "missing", 3), (None, None, "missing", 3), (GOOD, FAILED, "error", 3),
    (None, FAILED, "error", 3), (FAILED, GOOD, "error", 3), (FAILED, MISSING, "missing", 3),
])  # fmt: skip
def test_a_side_with_nothing_gives_one_record_and_is_never_a_regression(
    baseline, current, verdict, code
):
    (record,) = compare("case", baseline, current)
    assert (record.case, record.metric, record.verdict) == ("case", "case", verdict)
    assert record.why
    assert verdict in VERDICTS
    assert exit_code([record.verdict]) == code


def counted(*rows, **metrics):
    return Counted(metrics, operations=[Operation(*row) for row in rows], sizes={"N": 9})


def test_other_operations_of_the_same_cost_are_named():
    row = ("forward", "a.py:1", 1, 8, 0, "float32", "2")
    sides = (counted((name, *row), dispatched_operations=1) for name in ("sort", "topk"))
    (record,) = compare("case", *sides)
    assert record.verdict == "ok"
    assert "aten.topk ×1 more" in record.why
    assert "aten.sort ×1 fewer" in record.why


def test_a_result_that_grew_says_instead_of_what():
    before = counted(("cat", "forward", "a.py:1", 1, 80, 0, "float32", "2×5"), bytes_moved=80)
    after = counted(("cat", "forward", "a.py:2", 1, 160, 0, "float32", "2×10"), bytes_moved=160)
    (record,) = compare("case", before, after)
    assert record.why == "aten.cat at a.py:2 (float32 2×10 instead of float32 2×5), moves 80 B more"
    assert record.place == "a.py:2"


def test_operations_written_down_without_results_are_compared_by_their_sums():
    old = counted(("mm", "forward", "a.py:1", 2, 80, 9), bytes_moved=80)
    new = counted(
        ("mm", "forward", "a.py:7", 1, 40, 5, "float32", "2×5"),
        ("mm", "forward", "a.py:7", 1, 40, 4, "float32", "2×4"),
        bytes_moved=80,
    )
    assert [(r.verdict, r.why) for r in compare("case", old, new)] == [("ok", "")]
    more = counted(("mm", "forward", "a.py:7", 3, 120, 13, "float32", "2×5"), bytes_moved=120)
    (record,) = compare("case", old, more)
    assert record.why == "aten.mm ×1 more at a.py:7, moves 40 B more, 4 more FLOPs"


def test_the_line_of_one_copy_more_among_many_is_the_new_one():
    def rows(ops, first):
        return [(op, "forward", f"a.py:{first + i}", 1, 8, 0) for i, op in enumerate(ops)]

    before = rows(["clone", "exp", "clone", "abs"], 1)
    after = rows(["clone", "exp", "clone", "abs", "clone"], 2)
    (record,) = compare("c", counted(*before, bytes_moved=32), counted(*after, bytes_moved=40))
    assert record.place == "a.py:6"


def test_a_view_more_has_its_line_though_others_have_none():
    rows = [("detach", "backward", "", 1, 0, 0), ("transpose", "forward", "a.py:2", 1, 0, 0)]
    more = [*rows, ("transpose", "forward", "a.py:7", 1, 0, 0)]
    sides = counted(*rows, dispatched_operations=2), counted(*more, dispatched_operations=3)
    (record,) = compare("case", *sides)
    assert (record.place, record.why) == ("a.py:7", "aten.transpose ×1 more at a.py:7")


def test_operations_of_other_libraries_keep_their_name_and_metrics_of_one_side_are_new():
    row = ("mylib.scan", "forward", "", 1, 8, 0, "float32", "2")
    before, after = counted(dispatched_operations=0), counted(row, dispatched_operations=1)
    (record,) = compare("case", before, after)
    assert record.why.startswith("mylib.scan ×1 more (float32 2)")
    (new,) = compare("case", Counted({}), Counted({"unknown_scratch": 0}))
    assert (new.verdict, new.baseline) == ("new", None)


def changes_between(before, after, names=("src/a.py:Mine[N=9]",), *more):
    """The causes of the same change in cases of these names."""
    records = [record for name in names for record in compare(name, before, after)]
    sides = (dict.fromkeys(names, side) for side in (before, after))
    return causes([*records, *more], *sides)


def side(*rows, **metrics):
    """What ran: an operation, its line, FLOPs, and results' number format, 4 or 8 bytes each."""
    ran = [
        Operation(op, part, f"a.py:{line}", 1, size, flops, f"float{8 * size}", "1")
        for op, line, flops, size, part in ((*row, "forward")[:5] for row in rows)
    ]
    sums = {"bytes_moved": sum(r.bytes_moved for r in ran), "flops": sum(r.flops for r in ran)}
    return Counted({**sums, "dispatched_operations": len(ran), **metrics}, ran, sizes={"N": 9})


MM, CLONE = ("mm", 3, 90, 4), ("clone", 7, 0, 4)


def test_a_line_is_one_cause_of_all_metrics_and_cases():
    names = ("src/a.py:Mine[N=9]", "src/a.py:Mine[N=8]")
    (cause,) = changes_between(side(MM), side(MM, ("mul", 7, 9, 4), CLONE), names)
    assert (cause.verdict, cause.place, cause.operations) == (
        "regressed", "src/a.py:7", ["+mul", "+clone"],
    )  # fmt: skip
    assert cause.metrics == {
        "bytes_moved": [3, 3], "flops": [1.1, 1.1], "dispatched_operations": [3, 3],
    }  # fmt: skip
    assert cause.cases == [*names]


def test_each_line_has_its_own_share_of_a_sum_and_what_is_no_sum_is_told_together():
    after = side(MM, CLONE, ("mul", 9, 9, 4), ("clone", 12, 0, 4), peak_bytes=9)
    some = changes_between(side(MM, peak_bytes=4), after)
    assert [(c.place, c.operations, c.metrics.get("bytes_moved")) for c in some] == [
        ("src/a.py:7", ["+clone"], [2, 2]), ("src/a.py:12", ["+clone"], [2, 2]),
        ("src/a.py:9", ["+mul"], [2, 2]), (TOGETHER, [], None),
    ]  # fmt: skip
    assert [cause.metrics.get("flops") for cause in some] == [None, None, [1.1, 1.1], None]
    assert some[-1].metrics == {"peak_bytes": [2.25, 2.25]}


def test_what_is_gone_gets_better_where_something_else_gets_worse():
    worse, better = changes_between(side(MM, ("mul", 5, 9, 4)), side(MM, CLONE, ("exp", 7, 20, 4)))
    assert (worse.verdict, worse.place, worse.operations) == (
        "regressed", "src/a.py:7", ["+clone", "+exp"],
    )  # fmt: skip
    assert (better.verdict, better.place, better.operations) == ("improved", "src/a.py:5", ["−mul"])
    assert worse.metrics["flops"][0] == 1 + 20 / 99


def test_what_an_upcast_brings_about_is_part_of_it_and_a_copy_is_not():
    softmax = ("_softmax", 6, 50, 4)
    after = side(
        MM, ("_to_copy", 5, 0, 8), ("_softmax", 6, 50, 8), ("_to_copy", 8, 0, 4),
        ("clone", 8, 0, 4), ("_to_copy", 8, 0, 8, "backward"),
    )  # fmt: skip
    upcast, copy, *_ = changes_between(side(MM, softmax), after)
    assert (upcast.place, upcast.operations) == (
        "src/a.py:5", ["+cast to float64", "softmax in float64", "+cast to float32"],
    )  # fmt: skip
    assert (copy.place, copy.operations) == ("src/a.py:8", ["+clone"])


def test_time_and_what_could_not_run_are_causes_of_their_own():
    slow = [CheckRecord(case=c, metric="time", ratio=r, verdict="regressed")
            for c, r in (("x", 1.2), ("y", 1.1))]  # fmt: skip
    broken = CheckRecord(case="z", metric="case", verdict="error", why="no")
    clone, time, failed = changes_between(side(MM), side(MM, CLONE), ("a.py:A",), broken, *slow)
    assert (time.place, time.metrics, time.cases) == ("", {"time": [1.1, 1.2]}, ["x", "y"])
    assert (failed.verdict, failed.metrics, failed.why) == ("error", {}, ["no"])
    assert clone.place == "a.py:7"


def test_a_formula_belongs_to_the_line_that_alone_can_have_changed_it(tmp_path):
    after = PLAIN.replace("        y = w @ v", "        w = w.clone()\n        y = w @ v")
    one, two = (
        count(request_of(tmp_path, text, name), formulas=True)
        for text, name in ((PLAIN, "old"), (after, "new"))
    )
    (cause,) = changes_between(one, two, (f"{tmp_path}/new.py:Attention[N=96]",))
    assert cause.operations == ["+clone"]
    assert cause.why[0] == "+ 8·B·N²·h bytes moved"


def test_other_operations_of_the_same_cost_are_told_though_no_number_changed():
    (cause,) = changes_between(side(("sort", 3, 0, 4)), side(("topk", 5, 0, 4)))
    assert (cause.verdict, cause.place, cause.metrics) == ("ok", TOGETHER, {})
    assert cause.operations == ["+topk", "−sort"]
    assert changes_between(side(MM), side(MM)) == []


def test_an_operation_of_the_same_size_and_another_shape_is_not_called_smaller():
    before, after = (
        Counted({"dispatched_operations": 1}, [Operation("cat", "forward", "a.py:3", 1, 8, 0,
                                                         "float32", shape)])
        for shape in ("1×2", "2×1")
    )  # fmt: skip
    (change,) = changes(before, after)
    assert change.name == "reshaped cat"
