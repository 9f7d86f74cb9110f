"""Layouts of results that are told without torch: those that torch gives, with no condition."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnprof.trace.run.symbols import symbolic_sizes
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.sizes import evaluate, size_of, spoken

SIZES = {"B": 2, "N": 5, "h": 3, "d": 4}
Operation = Callable[[Any], Any]
OPERATIONS: dict[str, Operation] = {
    "entry by entry, rows": lambda x: (2 * x).exp() + x,
    "entry by entry, heads first": lambda x: x.transpose(1, 2) * x.transpose(1, 2),
    "entry by entry, two orders": lambda x: x.transpose(1, 2) + x.clone().transpose(1, 2).clone(),
    "entry by entry, the second decides": lambda x: torch.rsub(x.mT, 2 * x.mT.contiguous()),
    "entry by entry, the second decides too": lambda x: torch.ops.aten.threshold_backward(
        x.transpose(1, 2), x.transpose(1, 2).contiguous(), 0
    ),
    "entry by entry, parts": lambda x: x[..., 1:] * x[..., :-1],
    "entry by entry, parts of heads": lambda x: x.transpose(1, 2)[:, 1:] - x.transpose(1, 2)[:, :2],
    "spread": lambda x: x.unsqueeze(2) * x.unsqueeze(3),
    "spread along columns": lambda x: x * x.sum(-1, keepdim=True),
    "spread from one row": lambda x: x.transpose(1, 2) / x[0, 0, 0],
    "sum": lambda x: x.transpose(1, 2).sum((1, -1)),
    "copied": lambda x: x.transpose(1, 3).contiguous(),
    "copied as it is": lambda x: x.permute(2, 0, 3, 1).clone(),
    "copied part": lambda x: x.permute(2, 0, 3, 1)[1:].clone(),
    "copied rows that are one": lambda x: x[:, :1].expand(x.shape).transpose(0, 2).clone(),
    "written": lambda x: torch.zeros_like(x.transpose(0, 1)).copy_(x.transpose(0, 1)),
    "added to a part": lambda x: x.clone()[:, :, 1].add_(x[:, :, 0]),
    "products": lambda x: torch.bmm(x[:, :, 0], x[:, :, 1].mT),
    "a product": lambda x: x[0, :, 0] @ x[0, :, 1].t(),
    "views": lambda x: x.reshape(x.shape[0] * x.shape[1], -1).unsqueeze(1).squeeze(1).detach(),
    "every second": lambda x: x[:, :, 1:3:2].select(2, -1).contiguous().view(x.shape[0], -1),
}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_results_lie_as_those_of_numbers_do(operation: Operation) -> None:
    real = operation(torch.ones(2, 5, 3, 4))
    environment, sizes, names = symbolic_sizes({"B": 2, "N": 5, "d": 4})
    with spoken(names), fake_world(environment), torch.no_grad():
        found = operation(torch.ones(sizes["B"], sizes["N"], 3, sizes["d"]))
        layout = [*found.shape, *found.stride(), found.storage_offset()]
        held = size_of(found.untyped_storage().nbytes())
        numbers = [evaluate(size_of(x), SIZES) for x in (*layout, held)]
    assert numbers == [
        *real.shape, *real.stride(), real.storage_offset(), real.untyped_storage().nbytes(),
    ]  # fmt: skip
