"""Points that take a moment."""

from attnprof.errors import RequestError
from attnprof.measure.request import Budget, PointRequest

QUICK = Budget(samples=3, min_time_s=0, max_time_s=0.2, warmup_s=0)


def request(mechanism="standard", seq_len=96, **changes):
    return PointRequest(
        mechanism, seq_len, **{"num_heads": 2, "head_dim": 16, "budget": QUICK, **changes}
    )


def can(mechanism, **changes):
    """Whether a mechanism does not refuse this workload."""
    point_request = request(mechanism, **changes)
    try:
        point_request.spec.check(point_request.workload, "layer")
    except RequestError:
        return False
    return True
