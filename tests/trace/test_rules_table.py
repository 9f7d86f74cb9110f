"""The lists of operations: one place for each, all of them torch's; results without values."""

from itertools import combinations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from attnprof.trace.rules.replacements import EXPANSIONS, STAND_INS, result_of
from attnprof.trace.rules.table import MOVES, OVERWRITES, RULES, VIEWS

aten = torch.ops.aten
PLACES = {"views": VIEWS, "moves": MOVES, "rules": set(RULES), "expansions": set(EXPANSIONS)}


def test_an_operation_is_in_one_place():
    for one, other in combinations(PLACES, 2):
        assert {one, other} == {"rules", "expansions"} or not PLACES[one] & PLACES[other]


def test_every_name_is_an_operation_of_torch():
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    known = {name.removeprefix("aten::") for name in names if name.startswith("aten::")}
    spellings = known | {name.removesuffix("_") for name in known} | {n.strip("_") for n in known}
    listed = set(STAND_INS).union(*PLACES.values())
    assert not {name for name in listed - spellings if not name.startswith("attnprof::")}


def test_what_is_overwritten_is_a_move_in_place():
    assert all(name.endswith("_") and name.removesuffix("_") in MOVES for name in OVERWRITES)


ROWS = torch.rand(2, 5, 3)
COLUMNS = torch.rand(2, 3, 5).mT
HEADS = torch.rand(2, 3, 5, 4).transpose(1, 2)
LAST = torch.rand(2, 3, 4, 5).permute(0, 3, 1, 2)  # channels last
WEIGHT, MOMENTS = torch.rand(5), (torch.zeros(5), torch.ones(5))
NORM = (WEIGHT, WEIGHT, *MOMENTS)
NORMED = (COLUMNS, ROWS, [3], torch.rand(2, 5, 1), torch.rand(2, 5, 1))
ASKED = [True, True, True]
CALLS = {
    "batch norm of columns": (aten.native_batch_norm, COLUMNS, *NORM, True, 0.1, 1e-5),
    "batch norm of heads": (aten.native_batch_norm, HEADS, *NORM, False, 0.1, 1e-5),
    "batch norm of an image": (aten.native_batch_norm, LAST, *NORM, True, 0.1, 1e-5),
    "gradient of batch norm": (
        aten.native_batch_norm_backward, ROWS, COLUMNS, WEIGHT, *MOMENTS, *MOMENTS, True, 1e-5,
        ASKED,
    ),
    "gradient of layer norm": (
        aten.native_layer_norm_backward, *NORMED, torch.rand(3), torch.rand(3), ASKED
    ),
    "gradient of layer norm over columns": (
        aten.native_layer_norm_backward, COLUMNS, COLUMNS, [5, 3], torch.rand(2, 1, 1),
        torch.rand(2, 1, 1), torch.rand(3, 5).mT, torch.rand(5, 3), ASKED,
    ),
    "gradient of log softmax": (aten._log_softmax_backward_data, COLUMNS, ROWS, -1, torch.float32),
    "gradient of a loss": (aten.mse_loss_backward, torch.tensor(1.0), COLUMNS, COLUMNS, 1),
    "log sigmoid": (aten.log_sigmoid_forward, COLUMNS),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_results_without_values_lie_as_real_ones_do(call):
    func, *args = call
    real = func.default(*args)
    with FakeTensorMode() as mode:
        fakes = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, args)
        fake = result_of(func.default, tuple(fakes), {})
    layouts = [[(x.shape, x.stride()) for x in tree_leaves(y) if x.numel()] for y in (real, fake)]
    assert layouts[0] == layouts[1]
