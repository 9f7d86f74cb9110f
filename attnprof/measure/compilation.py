"""Modules through ``torch.compile``, the time it takes kept apart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.headroom import is_out_of_memory

#: What makes code of the graph; on a CPU it needs a C++ compiler.
BACKEND = "inductor"
#: Compiling in this process alone: helpers of its own would compete with what is measured.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def compiled(function: Any) -> Any:
    """A module or a function as compiled code, for the shapes of its first call only."""
    import torch

    torch.compiler.reset()  # what other points left; past a few shapes the compiler gives up
    return torch.compile(function, backend=BACKEND, dynamic=False)


def compile_now(
    prepare: Callable[[], object], call: Callable[[], object], settle: Callable[[], object]
) -> tuple[float, int]:
    """Seconds of the first call (compiling, and one run), and how often the graph breaks.

    Raises :class:`CannotRunError` with the compiler's reason where there will be no code.
    """
    from torch._dynamo.utils import counters

    counters.clear()
    start = time.perf_counter()
    try:
        prepare()
        kept = call()
        settle()
    except AttnprofError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise CannotRunError(f"cannot be compiled: {_reason(error)}") from error
    del kept
    return time.perf_counter() - start, sum(counters["graph_break"].values())


def _reason(error: BaseException) -> str:
    """The first cause in one line: compilers wrap their errors."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160] if lines else 'no message'}"
