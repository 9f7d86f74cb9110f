"""``attnprof calibrate``: measure what a device can do, for ``predict`` and the roofline."""

from pathlib import Path

from attnprof.cli import options as opt
from attnprof.cli.measurement import THREADS, WAIT_POLICY, set_wait_policy
from attnprof.cli.request import some_of
from attnprof.device.calibration import Calibration, default_path, entries, save
from attnprof.errors import RequestError
from attnprof.record import CalibrationRecord, Report
from attnprof.record.files import make_folder
from attnprof.record.recognition import reading_back
from attnprof.workload import DTYPES


def calibrate(
    *,
    device: opt.DeviceOption = "auto",
    dtype: str | None = opt.flag(
        "NAMES", "Number formats (default: float32; on a GPU bfloat16, too)."
    ),
    seconds: float = opt.flag(
        "SECONDS", "Time for each ceiling, an eightieth of it for each size of an operation; with "
        "less than 0.5 the largest sizes are left out.", default=0.5,
    ),
    contended: bool = opt.switch("--contended", "Go on where other processes use the processor."),
    threads: int | None = THREADS,
    wait_policy: str = WAIT_POLICY,
    calibration: Path | None = opt.flag("FILE", "Keep it here, not in the cache folder."),
    to: opt.Output,
) -> None:  # fmt: skip
    """Measure this device: its ceilings, and single operations.

    FLOP/s of products, bytes/s of a copy, and the seconds of products, operations on entries and
    rows, gathers, Fourier transforms and autograd over sizes; no attention is run. profile and
    sweep set their results beside the ceilings; predict is made of the operations.

    Examples:
      attnprof calibrate
      attnprof calibrate --device cuda --dtype float32,bfloat16
    """
    if not 0 < seconds < 3600:
        raise RequestError(f"--seconds {seconds}: give a time from above 0 to an hour")
    formats = None if dtype is None else some_of(dtype, DTYPES, "--dtype")
    path = calibration or default_path()
    make_folder(path.parent)
    opt.ensure_writable(path, force=to.force, flag="--calibration", extended=True)
    with reading_back():  # a file that is none is refused before torch is loaded
        saved = [] if to.force else [*map(Calibration.from_dict, entries(path))]
    set_wait_policy(wait_policy)
    import torch

    from attnprof.device.calibration_run import calibrate as run
    from attnprof.measure.batch import resolve_device
    from attnprof.measure.clocks import on_device
    from attnprof.measure.environment import device_name

    place = resolve_device(device)
    formats = formats or (["float32"] if place == "cpu" else ["float32", "bfloat16"])
    if threads is not None:
        torch.set_num_threads(threads)
    key = device_name(place), torch.get_num_threads()
    before = next((one for one in saved if one.key == key), None)
    with opt.working("calibrating"), on_device(place):
        measured = run(place, formats, seconds, contended=contended, before=before)
    save(measured, path, force=to.force)
    opt.note(f"kept in {path}")
    merged = measured.with_formats_of(before or measured)
    if dropped := [name for name in (before or measured).tables if name not in merged.tables]:
        opt.note(
            f"{', '.join(dropped)} had been calibrated under other conditions (wait policy, torch, "
            f"allocator or cores): type attnprof calibrate --dtype {','.join(dropped)}, too"
        )
    to.deliver(_ceilings_report(measured, merged, formats, path))


def _ceilings_report(
    calibration: Calibration, merged: Calibration, formats: list[str], path: Path
) -> Report:
    """Return a row a number format, and facts of the whole device as summary.

    ``merged``: the calibration with formats that were there before, which predictions use, too.
    """
    from attnprof.device.prediction import Predictor
    from attnprof.measure.environment import describe_environment

    ceilings = calibration.ceilings
    records = [
        CalibrationRecord(
            device=calibration.device, device_name=ceilings.name, threads=calibration.threads,
            dtype=name, flops_per_s=rate, bytes_per_s=ceilings.bytes_per_s, source=ceilings.source,
            operations=sum(len(table.seconds) for table in calibration.tables[name].values()),
            repeatability=calibration.repeatability,
        )
        for name, rate in ceilings.flops_per_s.items()
    ]  # fmt: skip
    missing = [name for name in formats if name not in ceilings.flops_per_s]
    summary = {
        "file": str(path), "not_multiplied": missing, "cpu_share": calibration.cpu_share,
        "fault_s_per_byte": calibration.fault_s, "made_of": Predictor(merged).made_of,
    }  # fmt: skip
    return Report("calibrate", records, summary, describe_environment(calibration.device))
