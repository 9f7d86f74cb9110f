"""Cost records: closed forms beside the numbers, and which errors mean that there is none."""

from dataclasses import replace

import pytest

from attnprof import registry
from attnprof.closed_form.cost_records import CostQuery, cost_records, executed_rows
from attnprof.costs import is_symbolic
from attnprof.errors import RequestError
from attnprof.ops.layout import ViewError, groups
from attnprof.workload import Workload

SIZES = Workload(seq_len=6, num_heads=2, head_dim=4)
Standard = type(registry.get("standard"))


def failing(error):
    """Return a mechanism whose costs raise an error where sizes are symbols."""

    class Failing(Standard):
        def cost(self, workload, scope="layer"):
            if is_symbolic(workload.seq_len):
                raise error
            return super().cost(workload, scope)

    return Failing()


@pytest.mark.parametrize("error", [TypeError("N < 8?"), ViewError("(N,)"), RequestError("even N")])
def test_a_mechanism_that_needs_plain_sizes_has_numbers_and_no_closed_form(error):
    query = CostQuery(quantities=("flops",), kinds=("formula",))
    records = cost_records(failing(error), SIZES, "layer", query)
    known = cost_records(registry.get("standard"), SIZES, "layer", query)
    assert [record.value for record in records] == [record.value for record in known]
    assert all(record.expression for record in known)
    assert not any(record.expression for record in records)


def test_another_error_with_symbols_is_not_taken_for_a_missing_closed_form():
    with pytest.raises(ValueError, match="a mistake"):
        cost_records(failing(ValueError("a mistake")), SIZES, "layer", CostQuery())


def test_a_closed_form_that_has_another_value_is_not_shown():
    class Other(Standard):
        def cost(self, workload, scope="layer"):
            table, n = super().cost(workload, scope), workload.seq_len
            return replace(table, parameters=12 * n if is_symbolic(n) else 72)

    query = CostQuery(quantities=("parameters", "flops"), kinds=("formula",))
    for length, forms in ((6, ["12*N"]), (7, [None])):
        totals = cost_records(Other(), SIZES.with_(seq_len=length), "layer", query)
        got = [x.expression for x in totals if x.quantity == "parameters"]
        assert got == forms
        assert all(x.expression for x in totals if x.quantity == "flops")


def test_a_shape_that_cannot_be_viewed_has_an_error_of_its_own():
    with pytest.raises(ViewError, match="cannot be viewed"):
        groups((2, 3), (5,))


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("phase", ["forward", "train", "decode"])
def test_half_precision_has_rows_whatever_is_copied_into_float32(name, phase):
    mechanism, half = registry.get(name), SIZES.with_(seq_len=64, phase=phase, dtype="bfloat16")
    try:
        table = mechanism.cost(half, "layer")
    except RequestError:
        pytest.skip(f"{name} does not {phase}")
    *stages, total = executed_rows(mechanism, half, "layer")
    assert [row.values["peak_bytes"] for row in stages] == list(table.live())
    assert max(row.values["peak_bytes"] for row in stages) == total.values["peak_bytes"]
    assert total.values["peak_entries"] == mechanism.cost(half.with_(dtype="entry"), "layer").peak()
