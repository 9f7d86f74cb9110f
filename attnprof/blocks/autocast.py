"""Functions with their own backward pass under automatic mixed precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    """The function's result; where autocast is on, of operands in its number format.

    Inside a function with its own backward pass autocast would cast some operands and not the
    places they are written to, so it is off there.
    """
    device = next(x for x in given if isinstance(x, Tensor)).device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return function.apply(*given)  # type: ignore[no-untyped-call]  # torch
    chosen = torch.get_autocast_dtype(device)
    cast = [x.to(chosen) if isinstance(x, Tensor) else x for x in given]
    with torch.autocast(device, enabled=False):
        return function.apply(*cast)  # type: ignore[no-untyped-call]  # torch
