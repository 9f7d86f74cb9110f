"""Read how fast a machine is now against when it was calibrated, in a fraction of a second.

Entry point: :func:`read_machine`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnprof.device.calibration import Calibration
from attnprof.measure.clocks import threads as thread_count

#: Seconds of measuring the share of processors, and readings of the reference operation meanwhile.
READING_S, BUNDLES = 0.3, 40
#: Least factor by which a machine counts as slower or faster; readings in one state differ by less.
SLOWER = 1.25
#: Share, in logarithms, by which layers follow the reference operation where it is slower. Of 735
#: layers on a virtual machine 0.5 had the least errors, and of 142 on another kind of processor
#: 0.25 and 0.5; where it was not slower, following had larger ones than not. What it gains:
#: reports/times/prediction_rules.md.
FOLLOWED = 0.5


@dataclass(frozen=True)
class MachineReading:
    """How fast a machine is now: ``slowdown``, times slower than calibrated, below 1 if faster.

    It is 1 if the difference is no more than ``SLOWER``. ``swing``: factor by which its speed
    changes from moment to moment, 1 if it did while calibrating. ``remarks``: what users are told.
    """

    slowdown: float = 1.0
    swing: float = 1.0
    remarks: str = ""

    @property
    def factor(self) -> float:
        """The factor of predicted times, which follow the reference operation in part."""
        return float(self.slowdown**FOLLOWED)

    @property
    def ends(self) -> tuple[float, float]:
        """The factors of the low and the high end of intervals, which reach over both speeds."""
        return min(1.0, self.slowdown), max(1.0, self.slowdown, self.swing)

    @property
    def widening(self) -> float:
        """How much wider intervals are for the speed, which two mechanisms have in common."""
        low, high = self.ends
        return high / low


def read_machine(calibration: Calibration, conditions: Mapping[str, Any]) -> MachineReading:
    """Return how fast this machine is now against when it was calibrated, with remarks for users.

    The reference operation is timed again on the calibration's threads, and the share of the
    processors that other programs leave; the slower of both counts. Remarks tell of it, of a speed
    that changes from moment to moment, and of ``conditions`` that differ from the calibration's.
    """
    from attnprof.device.calibration_run import machine_speed

    with thread_count(calibration.threads):
        reference_s, swing, share = machine_speed(READING_S, BUNDLES)
    usual_s, usual_share = calibration.reference_s, calibration.cpu_share
    factors = [reference_s / usual_s] if usual_s else []
    factors += [usual_share / share] if usual_share else []
    slowdown = max(factors, default=1.0)
    if slowdown <= SLOWER:
        slowdown = min(factors, default=1.0)
    reading, remarks = MachineReading(), list[str]()
    if max(slowdown, 1 / slowdown) > SLOWER:
        # without a reference operation, as of a GPU, only the host is slower
        reading = MachineReading(slowdown) if usual_s else MachineReading(swing=max(1.0, slowdown))
        factor, change = (slowdown, "slower") if slowdown > 1 else (1 / slowdown, "faster")
        remarks.append(
            f"this machine is about {factor:.1f} times {change} now than when it was calibrated "
            "(other programs, another clock, or cores that wait longer for each other): times are "
            f"{reading.factor:.2f} × those of then, as layers follow that in part, and intervals "
            "reach over both speeds"
        )
    if usual_s and slowdown <= SLOWER < swing:
        remarks.append(
            f"its speed changes by a factor of {swing:.1f} from moment to moment (other programs "
            "on its cores): times are of the faster state, and a run may take as much longer"
        )
        if swing > SLOWER * calibration.swing:
            reading = replace(reading, swing=swing / calibration.swing)
    if differences := "; ".join(
        f"{name.replace('_', ' ')} {calibrated_value}, here {conditions.get(name)}"
        for name, calibrated_value in calibration.conditions.items()
        if conditions.get(name) != calibrated_value
    ):
        remarks.append(f"calibrated with {differences}: type attnprof calibrate")
    return replace(reading, remarks="; ".join(remarks))
