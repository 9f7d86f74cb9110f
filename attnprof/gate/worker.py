"""The process that runs one side of a comparison: it counts a case, or times calls on demand.

It is loaded by its path (see :mod:`attnprof.processes.forks`), so that both sides use this
version's protocol, whatever version of attnprof their tree has. A tree without attnprof uses this
attnprof.
"""

import contextlib
import gc
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

#: Modules that are slow to import (fake tensors import ``torch._dynamo``), or start threads, which
#: a fork would lack. An older tree may lack one; an order that needs it then says so.
PRELOAD = (
    "torch", "torch._dynamo", "numpy", "psutil", "attnprof.measure.subject",
    "attnprof.measure.clocks", "attnprof.gate.counts", "attnprof.trace.request.lookup",
    "attnprof.trace.run.runs", "attnprof.trace.events", "attnprof.trace.solve.derive",
)  # fmt: skip
#: Warm-up before timing: seconds, and at least so many calls.
WARM_S, WARM_CALLS = 0.03, 3
#: Exit code of a process whose code has closed the channel for answers.
MUTE = 74
#: Memory that stays allocated while the process lives, so that the holes between blocks stay.
_KEPT: list[Any] = []
#: Modules of attnprof, which both sides load from one place; folders of installed packages.
_OWN = ("__main__", "attnprof", "attnprof_worker")
_INSTALLED = {"site-packages", "dist-packages"}

_Line = dict[str, Any]
Say = Callable[[_Line], None]
More = Callable[[], _Line | None]


def preload(order: _Line) -> None:
    """Import torch and attnprof in the server, before the first order."""
    for name in () if order else PRELOAD:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    import_module("torch")


def _with_exit_code(work: Callable[[_Line, Say, More], None]) -> Callable[[_Line, Say, More], int]:
    """Wrap an order's function: send an exception as an answer, return an exit code."""

    @wraps(work)
    def run(order: _Line, say: Say, more: More) -> int:
        try:
            work(order, say, more)
        except BaseException as error:  # noqa: BLE001 - somebody's code may raise anything
            name, first = type(error).__name__, (str(error).splitlines() or [""])[0][:400]
            if not type(error).__module__.startswith("attnprof."):
                first = f"{name}: {first}" if first else name
            # by name: the tree may hold another attnprof
            missing = "NotFoundError" in {kind.__name__ for kind in type(error).__mro__}
            try:
                say({"error": first, "missing": missing})
            except OSError:
                return MUTE
            return 1
        return 0

    return run


@_with_exit_code
def count(order: _Line, say: Say, _more: More) -> None:
    """Answer with the exact counts of a request (see :mod:`attnprof.gate.counts`)."""
    counts = import_module("attnprof.gate.counts")
    guessing = "alone" in signature(counts.count).parameters  # older trees lack it
    guesses = {"alone": order.get("alone", False)} if guessing else {}
    counted = asdict(counts.count(_request(order), order["formulas"], **guesses))
    say({"counted": counted, "code": _code_of(order["request"]["mechanism"])})


def _code_of(name: str) -> _Line:
    """Return the file of a module's code and all loaded files outside installed packages."""
    place = name if name.endswith(".py") else name.rpartition(":")[0]
    file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    modules = [module for name, module in list(sys.modules.items())
               if name.partition(".")[0] not in _OWN]  # fmt: skip
    # an attribute of a lazy module would import it
    others = [getattr(module, "__dict__", {}).get("__file__") for module in modules]
    outside = _outside_packages([file])
    return {"file": outside[0] if outside else "", "files": _outside_packages(others)}


def _outside_packages(files: Sequence[Any]) -> list[str]:
    """Return the real paths of files outside Python's library and installed packages."""
    standard = sysconfig.get_path("stdlib")
    real_paths = {
        os.path.realpath(file) for file in files
        if isinstance(file, str) and not file.startswith(standard)
    }  # fmt: skip
    return sorted(file for file in real_paths if _INSTALLED.isdisjoint(Path(file).parts))


@_with_exit_code
def measure(order: _Line, say: Say, more: More) -> None:
    """Build and warm up a request's module, then time each block of calls that is ordered."""
    block = _open_module(order, say)
    while (order_line := more()) is not None and "calls" in order_line:
        say(block(order_line["calls"]))


def _request(order: _Line) -> Any:
    """Return the request without fields that the attnprof of this tree does not know."""
    kind = import_module("attnprof.measure.request").PointRequest
    names = {item.name for item in fields(kind)}
    return kind.from_dict({k: v for k, v in order["request"].items() if k in names})


def _open_module(order: _Line, say: Say) -> Callable[[int], _Line]:
    """Build and warm up, answer with the time of a call; return a timer of blocks of calls."""
    import torch

    request = _request(order)
    torch.set_num_threads(request.threads or 1)
    if request.device.startswith("cuda:"):
        torch.cuda.set_device(request.device)  # events and waiting are the current device's
    _KEPT.extend(_fragmented_memory(torch))
    subject = import_module("attnprof.measure.subject").build_subject(
        request, compiled=request.compiled
    )
    on_gpu = request.device.startswith("cuda")
    timed = _gpu_timer(request.device, subject) if on_gpu else _cpu_timer(subject)
    gc.collect()
    gc.disable()
    seconds, end, calls = [], time.perf_counter() + WARM_S, 0
    while calls < WARM_CALLS or time.perf_counter() < end:
        seconds.append(max(timed(1)["cpu_s"], 1e-7))
        calls += 1
    say({"call_s": sorted(seconds)[len(seconds) // 2]})
    return timed


def _fragmented_memory(torch: Any) -> list[Any]:
    """Allocate blocks of random sizes and free some, so that later tensors lie at random addresses.

    Addresses decide how tensors share caches. Without this, two processes of the same code differed
    by 5 %, and so did all their forks. Now each fork has other addresses, and the difference is
    noise that is averaged and measured.
    """
    chance = random.Random(os.urandom(8))  # noqa: S311 - no secret
    blocks: list[Any] = [
        torch.empty(64 * chance.randrange(1, 4096), dtype=torch.uint8) for _ in range(200)
    ]
    blocks += [bytearray(chance.randrange(1, 400)) for _ in range(20_000)]
    chance.shuffle(blocks)
    return blocks[::2]


def _cpu_timer(subject: Any) -> Callable[[int], _Line]:
    """Return a timer of calls: processor seconds of all threads, and wall seconds."""
    prepare, call = subject.prepare, subject.call

    def block(calls: int) -> _Line:
        busy = passed = 0
        for _ in range(calls):
            prepare()
            before, start = time.process_time_ns(), time.perf_counter_ns()
            kept = call()
            end, after = time.perf_counter_ns(), time.process_time_ns()
            del kept
            busy += after - before
            passed += end - start
        return {"cpu_s": busy / 1e9, "wall_s": passed / 1e9}

    return block


def _gpu_timer(device: str, subject: Any) -> Callable[[int], _Line]:
    """Return a timer by a GPU's events, whose time stands for processor and wall time."""
    import torch

    clock = import_module("attnprof.measure.clocks").cuda_clock(torch, device)
    adapted: list[bool] = []

    def block(calls: int) -> _Line:
        if not adapted and calls > 1:
            clock.adapt(subject.prepare, subject.call)
            adapted.append(True)
        passed = sum(sample.wall_s for sample in clock.times(subject.prepare, subject.call, calls))
        return {"cpu_s": passed, "wall_s": passed}

    return block
