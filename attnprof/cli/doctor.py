"""``attnprof doctor``: the environment, the devices, and which counters work here.

Each check is a small live test (:func:`probes`), whose exception is a result like any other.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attnprof
from attnprof.cli.options import Output, environment, working
from attnprof.errors import CannotRunError
from attnprof.record import DoctorRecord, Report

_Probe = Callable[[], tuple[str, str]]
#: Libraries of which only the version is shown.
LIBRARIES = (
    "numpy", "sympy", "pandas", "matplotlib", "fvcore", "typer", "rich", "ruptures", "junitparser",
)  # fmt: skip
MISSING = "missing"
SIZE = 8


def doctor(*, to: Output) -> int:
    """Show the environment, the devices, and which counters work.

    Each is tried, by a small live test. Ends with 3 where torch is missing: nothing can be
    measured then.

    Examples:
      attnprof doctor
      attnprof doctor --format json
    """
    with working("trying what works here"):
        records = list(probes())
    bad = [record.check for record in records if record.status in (MISSING, "broken")]
    to.deliver(Report("doctor", records, {"problems": bad}, environment()))
    return CannotRunError.exit_code if "torch" in bad else 0


def probes() -> Iterator[DoctorRecord]:
    """Yield the record of every check in order; none of them raises."""
    yield _probe_record("python", lambda: (f"{platform.python_version()} ({sys.executable})", "ok"))
    yield _probe_record("platform", lambda: (platform.platform(), "ok"))
    yield _probe_record("attnprof", lambda: (attnprof.__version__, "ok"))
    for name in LIBRARIES:
        yield _probe_record(
            name, partial(lambda name: (version(name), "ok"), name), f"pip install {name}"
        )
    torch_record = _probe_record("torch", _torch, "pip install torch")
    yield torch_record
    yield _probe_record("processor", _processor)
    if torch_record.status != "ok":
        return
    yield _probe_record("CUDA", _cuda)
    yield _probe_record("torch's FLOP counter", _torch_counter, "profile leaves flops_torch empty")
    yield _probe_record("fvcore's counter", _fvcore_counter, "profile leaves macs_fvcore empty")
    yield _probe_record("memory on CPU", _cpu_memory, "profile leaves peak_bytes_measured empty")
    yield _probe_record("figures", _figures, "pip install matplotlib; --plot and heatmap need it")


def _probe_record(check: str, probe: _Probe, advice: str = "") -> DoctorRecord:
    """Return a check's record; an exception is its result."""
    try:
        answer, status = probe()
    except PackageNotFoundError:
        answer, status = "not installed", MISSING
    except ImportError as error:
        answer, status = str(error), MISSING
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        answer, status = f"{type(error).__name__}: {error}".split("\n", 1)[0], "broken"
    advice = "" if status == "ok" else advice
    return DoctorRecord(check=check, found=answer, status=status, advice=advice)


def _torch() -> tuple[str, str]:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} threads", "ok"


def _processor() -> tuple[str, str]:
    import psutil

    memory = psutil.virtual_memory()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gib = memory.available / 2**30
    return f"{usable} cores usable, {gib:.1f} of {memory.total / 2**30:.1f} GiB free", "ok"


def _cuda() -> tuple[str, str]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch is built for CUDA {built}" if built else "torch is a CPU build"
        return f"no device; {why}; measurements run on the CPU", "none"
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    names = [
        f"cuda:{i} {it.name}, {it.total_memory / 2**30:.1f} GiB" for i, it in enumerate(devices)
    ]
    return f"CUDA {torch.version.cuda}: {'; '.join(names)}", "ok"


def _torch_counter() -> tuple[str, str]:
    """Count a product of fake tensors, whose result takes no memory."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        torch.mm(torch.empty(SIZE, SIZE), torch.empty(SIZE, SIZE))
    return _count_result(counter.get_total_flops(), 2 * SIZE**3, "FLOPs on fake tensors")


def _fvcore_counter() -> tuple[str, str]:
    import torch
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(torch.nn.Linear(SIZE, SIZE, bias=False), torch.zeros(SIZE, SIZE))
    macs = analysis.unsupported_ops_warnings(enabled=False).total()
    return _count_result(int(macs), SIZE**3, "MACs")


def _cpu_memory() -> tuple[str, str]:
    """Let torch's profiler see an allocation of known size."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from attnprof.measure.memory import quiet_stderr

    cpu = [ProfilerActivity.CPU]
    with quiet_stderr(), profile(activities=cpu, profile_memory=True) as profiler:
        tensor = torch.empty(SIZE, 1024)
    sizes: list[Any] = [event.cpu_memory_usage for event in profiler.events()]
    return _count_result(max(sizes, default=0), tensor.nbytes, "bytes seen by the profiler")


def _count_result(counted: int, expected: int, unit: str) -> tuple[str, str]:
    if counted == expected:
        return f"works: {counted} {unit}", "ok"
    return f"counts {counted} {unit} where {expected} are due", "broken"


def _figures() -> tuple[str, str]:
    from attnprof.render.plots.style import figure_bytes, new_figure

    figure_bytes(new_figure(1))
    return "works: draws a PNG without a display", "ok"
