"""`attnprof calibrate`: this device's own ceilings, measured."""

import os
from pathlib import Path

from typer import Option

from attnprof.cli.measurement import THREADS
from attnprof.cli.options import DeviceOption, Output, ensure_writable, note
from attnprof.cli.request import some_of
from attnprof.device import roofline
from attnprof.errors import RequestError
from attnprof.record import CalibrationRecord, Report
from attnprof.record.files import make_folder
from attnprof.record.recognition import reading_back
from attnprof.workload import DTYPES


def calibrate(
    *,
    device: DeviceOption = "auto",
    dtype: str = Option("float32,bfloat16", metavar="NAMES", help="Number formats of products."),
    seconds: float = Option(0.5, metavar="SECONDS", help="Time for each size of a product."),
    threads: int | None = THREADS,
    file: Path | None = Option(None, metavar="FILE", help="Keep it here, not in the cache folder."),
    to: Output,
) -> None:
    """Measure what this device can do at most: FLOP/s and bytes/s.

    By matrix products and a copy; no attention is run. profile and sweep set their results beside
    it.

    Examples:
      attnprof calibrate
      attnprof calibrate --device cuda --dtype float32,bfloat16
    """
    if not 0 < seconds < 3600:
        raise RequestError(f"--seconds {seconds}: give a time from above 0 to an hour")
    wanted = some_of(dtype, DTYPES, "--dtype")
    path = roofline.default_path() if file is None else file
    make_folder(path.parent)
    ensure_writable(path, force=to.force, flag="--file", extended=True)
    if not to.force:
        with reading_back():
            roofline.entries(path)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from attnprof.measure.batch import resolve_device
    from attnprof.measure.environment import describe_environment

    where = resolve_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    found = roofline.calibrate(where, wanted, seconds)
    roofline.save(found, path, device=where, threads=torch.get_num_threads(), force=to.force)
    note(f"kept in {path}")
    records = [
        CalibrationRecord(
            device=where, device_name=found.name, threads=torch.get_num_threads(), dtype=name,
            flops_per_s=rate, bytes_per_s=found.bytes_per_s, source=found.source,
        )
        for name, rate in found.flops_per_s.items()
    ]  # fmt: skip
    missing = [name for name in wanted if name not in found.flops_per_s]
    summary = {"file": str(path), "not_multiplied": missing}
    to.deliver(Report("calibrate", records, summary, describe_environment(where)))
