"""One side of a comparison: a process that runs the code of one tree, told what by lines of JSON.

Run as a script, ``python worker.py TREE HOME``, so that both sides speak this version's language
whatever version of attnprof the tree holds; where it holds none, the one in HOME runs. Orders:

- ``count``: what has no noise, of one request (see :mod:`attnprof.gate.counting`);
- ``open``: build a request's module and warm it up; then ``block`` times so many calls, ``close``
  ends it.

Each ``count`` and each ``open`` has a process of its own, forked from this one, which has
imported everything and run nothing; when it ends, a line says so, and nothing it started is left.
An order has a number (``id``) that its answers carry, for what somebody's code writes, and answers
to what was asked before it died, are neither.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from os import write as _write  # what runs here may replace the module's
from pathlib import Path
from typing import Any

#: What is slow to import, or starts threads that a fork would not have.
PRELOAD = ("torch", "numpy", "attnprof.measure.subject", "attnprof.measure.clocks",
           "attnprof.gate.counting", "attnprof.trace.finding", "attnprof.trace.runs")  # fmt: skip
#: Calls before the clock counts: seconds of them, and at least so many.
WARM_S, WARM_CALLS = 0.03, 3

#: What a process ends with whose code has closed the channel.
_MUTE = 74

#: What has to stay where it is for as long as a process lives.
_KEPT: list[Any] = []

Answer = dict[str, Any]


def main() -> None:
    """Serve until the orders end."""
    tree, home, parent = sys.argv[1:4]
    keeping = _keeping(home)
    keeping.die_with_parent(int(parent))
    keeping.ignore_signals()
    keeping.adopt_orphans()
    own = str(Path(__file__).resolve().parent)
    rest = [place for place in sys.path if place != own]
    sources = [place for place in (tree, str(Path(tree) / "src")) if Path(place).is_dir()]
    sys.path[:] = [*sources, *rest, *([] if home in rest else [home])]
    channel = os.dup(1)
    os.dup2(2, 1)  # what somebody's module prints is no answer
    for name in PRELOAD:
        # an older tree may lack one: orders that need it will say so
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    import_module("torch")
    gc.collect()
    gc.freeze()  # what forks share is never looked through again, and so never copied
    _say(channel, {"id": 0}, {"ready": True})
    while (order := _next()) is not None:
        if order["do"] in ("count", "open"):  # else it was for a process that is gone
            ended = keeping.run_forked(partial(_guarded, order, channel, keeping))
            how = "closed what it answers by" if ended.code == _MUTE else ended.how
            _say(channel, order, {"ended": ended.code, "how": how, "said": ended.said})


def _keeping(home: str) -> Any:
    """This version's way of keeping processes, whatever version the tree holds."""
    file = Path(home) / "attnprof" / "processes" / "keeping.py"
    spec = spec_from_file_location("attnprof_keeping", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _next() -> Answer | None:
    """The next order; None when there are no more. No order comes before the last was answered."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            return None
        line += piece
    found: Answer = json.loads(line)
    return found


def _say(channel: int, order: Answer, answer: Answer) -> None:
    data = (json.dumps({"id": order["id"], **answer}) + "\n").encode()
    while data:
        data = data[_write(channel, data) :]


def _guarded(order: Answer, channel: int, keeping: Any) -> int:
    try:
        if order["request"]["device"] == "cpu":
            keeping.limit_memory()
        _serve(order, partial(_say, channel, order))
    except BaseException as error:  # noqa: BLE001 - somebody's code may raise anything
        try:
            _say(channel, order, {"error": _told(error), "missing": _is_missing(error)})
        except OSError:
            return _MUTE
        return 1
    return 0


def _told(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0][:400]
    return first if type(error).__module__.startswith("attnprof.") else _named(error, first)


def _named(error: BaseException, first: str) -> str:
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _is_missing(error: BaseException) -> bool:
    """Whether the code asked for does not exist; by name, as the tree may hold another attnprof."""
    return "NotFoundError" in {kind.__name__ for kind in type(error).__mro__}


def _serve(order: Answer, say: Callable[[Answer], None]) -> None:
    if order["do"] == "count":
        counting = import_module("attnprof.gate.counting")
        found = counting.count(_request(order), order["formulas"])
        say({"counted": _plain(found)})
        return
    measure = _opened(order, say)
    while (more := _next()) is not None and more["do"] == "block":
        say(measure(more["calls"]))


def _plain(found: Any) -> Answer:
    from dataclasses import asdict

    return asdict(found)


def _request(order: Answer) -> Any:
    """The request, less what this tree's attnprof does not know of."""
    from dataclasses import fields

    requests = import_module("attnprof.measure.request")
    known = {item.name for item in fields(requests.PointRequest)}
    return requests.PointRequest.from_dict(
        {k: v for k, v in order["request"].items() if k in known}
    )


def _opened(order: Answer, say: Callable[[Answer], None]) -> Callable[[int], Answer]:
    """Build, warm up, tell how long a call takes; gives what times a block of calls."""
    import torch

    request = _request(order)
    torch.set_num_threads(request.threads or 1)
    _KEPT.extend(_scattered(torch))
    subject = import_module("attnprof.measure.subject").build_subject(
        request, compiled=request.compiled
    )
    on_gpu = request.device.startswith("cuda")
    timed = _events(request.device, subject) if on_gpu else _processor_time(subject)
    gc.collect()
    gc.disable()
    seconds, end, calls = [], time.perf_counter() + WARM_S, 0
    while calls < WARM_CALLS or time.perf_counter() < end:
        found = timed(1)
        seconds.append(max(found["cpu_s"], 1e-7))
        calls += 1
    say({"call_s": sorted(seconds)[len(seconds) // 2]})
    return timed


def _scattered(torch: Any) -> list[Any]:
    """Memory full of holes of random sizes, for tensors and for Python's objects.

    Where they lie decides how they share caches; without this, two processes of the same code
    were seen 5 % apart, and all their forks with them. Now each fork has a place of its own, and
    the difference is noise that is averaged and measured.
    """
    chance = random.Random(os.urandom(8))  # noqa: S311 - no secret
    blocks: list[Any] = [
        torch.empty(64 * chance.randrange(1, 4096), dtype=torch.uint8) for _ in range(200)
    ]
    blocks += [bytearray(chance.randrange(1, 400)) for _ in range(20_000)]
    chance.shuffle(blocks)
    return blocks[::2]


def _processor_time(subject: Any) -> Callable[[int], Answer]:
    """Processor seconds of all threads, and seconds passed, of so many calls."""
    prepare, call = subject.prepare, subject.call

    def block(calls: int) -> Answer:
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


def _events(device: str, subject: Any) -> Callable[[int], Answer]:
    """A GPU's own time, between events: both answers are the same."""
    import torch

    clock = import_module("attnprof.measure.clocks").cuda_clock(torch, device)
    adapted: list[bool] = []

    def block(calls: int) -> Answer:
        if not adapted and calls > 1:
            clock.adapt(subject.prepare, subject.call)
            adapted.append(True)
        passed = sum(sample.wall_s for sample in clock.times(subject.prepare, subject.call, calls))
        return {"cpu_s": passed, "wall_s": passed}

    return block


if __name__ == "__main__":
    main()
