"""Whether a machine is as it was when it was calibrated, by a reading of a fraction of a second."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnprof.device.calibration import Calibration

#: Seconds of a reading, and bundles of the reference operation in it.
READING_S, BUNDLES = 0.15, 40
#: A machine counts as slower from this factor on; readings of an undisturbed one differ by less.
SLOWER = 1.25


@dataclass(frozen=True)
class MachineState:
    """How many times slower a machine is than when it was calibrated, and what is different."""

    slowdown: float = 1.0
    different: tuple[str, ...] = ()

    def __str__(self) -> str:
        slower = (
            f"this machine is about {self.slowdown:.1f} times slower now than when it was "
            "calibrated (other programs, or a lower clock)"
        )
        remarks = [slower] if self.slowdown > 1 else []
        if self.different:
            remarks.append(f"calibrated with {'; '.join(self.different)}: type attnprof calibrate")
        return "; ".join(remarks)


def read_machine(calibration: Calibration, conditions: Mapping[str, Any]) -> MachineState:
    """Time the reference operation and the share of the processors that are left, now.

    ``conditions`` are those of this process, which are compared with those of the calibration.
    """
    from attnprof.device.calibration_run import machine_speed

    reference_s, share = machine_speed(READING_S, BUNDLES)
    factors = [1.0]
    if calibration.reference_s:
        factors.append(reference_s / calibration.reference_s)
    if calibration.cpu_share:
        factors.append(calibration.cpu_share / share)
    slowdown = max(factors)
    different = tuple(
        f"{name.replace('_', ' ')} {there}, here {conditions.get(name)}"
        for name, there in calibration.conditions.items()
        if conditions.get(name) != there
    )
    return MachineState(slowdown if slowdown > SLOWER else 1.0, different)
