"""What changed is told by cause: each line of code once, whatever metrics and cases show it."""

from attnprof.gate.changes import causes, changes
from attnprof.gate.counts import Counted, Operation, count
from attnprof.gate.exact import compare
from attnprof.gate.rules import TOGETHER
from attnprof.record import CheckRecord

from .samples import PLAIN, request_of


def found(before, after, names=("src/a.py:Mine[N=9]",), *more):
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
    (cause,) = found(side(MM), side(MM, ("mul", 7, 9, 4), CLONE), names)
    assert (cause.verdict, cause.place, cause.operations) == (
        "regressed", "src/a.py:7", ["+mul", "+clone"],
    )  # fmt: skip
    assert cause.metrics == {
        "bytes_moved": [3, 3], "flops": [1.1, 1.1], "dispatched_operations": [3, 3],
    }  # fmt: skip
    assert cause.cases == [*names]


def test_each_line_has_its_own_share_of_a_sum_and_what_is_no_sum_is_told_together():
    after = side(MM, CLONE, ("mul", 9, 9, 4), ("clone", 12, 0, 4), peak_bytes=9)
    some = found(side(MM, peak_bytes=4), after)
    assert [(c.place, c.operations, c.metrics.get("bytes_moved")) for c in some] == [
        ("src/a.py:7", ["+clone"], [2, 2]), ("src/a.py:12", ["+clone"], [2, 2]),
        ("src/a.py:9", ["+mul"], [2, 2]), (TOGETHER, [], None),
    ]  # fmt: skip
    assert [cause.metrics.get("flops") for cause in some] == [None, None, [1.1, 1.1], None]
    assert some[-1].metrics == {"peak_bytes": [2.25, 2.25]}


def test_what_is_gone_gets_better_where_something_else_gets_worse():
    worse, better = found(side(MM, ("mul", 5, 9, 4)), side(MM, CLONE, ("exp", 7, 20, 4)))
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
    upcast, copy, *_ = found(side(MM, softmax), after)
    assert (upcast.place, upcast.operations) == (
        "src/a.py:5", ["+cast to float64", "softmax in float64", "+cast to float32"],
    )  # fmt: skip
    assert (copy.place, copy.operations) == ("src/a.py:8", ["+clone"])


def test_time_and_what_could_not_run_are_causes_of_their_own():
    slow = [CheckRecord(case=c, metric="time", ratio=r, verdict="regressed")
            for c, r in (("x", 1.2), ("y", 1.1))]  # fmt: skip
    broken = CheckRecord(case="z", metric="case", verdict="error", why="no")
    clone, time, failed = found(side(MM), side(MM, CLONE), ("a.py:A",), broken, *slow)
    assert (time.place, time.metrics, time.cases) == ("", {"time": [1.1, 1.2]}, ["x", "y"])
    assert (failed.verdict, failed.metrics, failed.why) == ("error", {}, ["no"])
    assert clone.place == "a.py:7"


def test_a_formula_belongs_to_the_line_that_alone_can_have_changed_it(tmp_path):
    after = PLAIN.replace("        y = w @ v", "        w = w.clone()\n        y = w @ v")
    one, two = (
        count(request_of(tmp_path, text, name), formulas=True)
        for text, name in ((PLAIN, "old"), (after, "new"))
    )
    (cause,) = found(one, two, (f"{tmp_path}/new.py:Attention[N=96]",))
    assert cause.operations == ["+clone"]
    assert cause.why[0] == "+ 8·B·N²·h bytes moved"


def test_other_operations_of_the_same_cost_are_told_though_no_number_changed():
    (cause,) = found(side(("sort", 3, 0, 4)), side(("topk", 5, 0, 4)))
    assert (cause.verdict, cause.place, cause.metrics) == ("ok", TOGETHER, {})
    assert cause.operations == ["+topk", "−sort"]


def test_nothing_changed_has_no_cause():
    assert found(side(MM), side(MM)) == []


def test_an_operation_of_the_same_size_and_another_shape_is_not_called_smaller():
    before, after = (
        Counted({"dispatched_operations": 1}, [Operation("cat", "forward", "a.py:3", 1, 8, 0,
                                                         "float32", shape)])
        for shape in ("1×2", "2×1")
    )  # fmt: skip
    (change,) = changes(before, after)
    assert change.name == "reshaped cat"
