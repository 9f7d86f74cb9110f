"""Results made without values lie in memory as those of the kernels do."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from attnprof.trace.rules.stand_ins import result_of

aten = torch.ops.aten
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
