"""Points that take a moment, and mechanisms that are not what they should be."""

from attnprof.errors import RequestError
from attnprof.measure.request import Budget, PointRequest

QUICK = Budget(samples=3, min_time_s=0, max_time_s=0.2, warmup_s=0)
#: A file with a mechanism that is standard attention but for one method of its core.
MECHANISM = """
import os, signal, time
from dataclasses import dataclass
from typing import ClassVar
import torch
from attnprof.blocks.core import TextCore
from attnprof.mechanisms.standard import Standard

@dataclass(frozen=True, kw_only=True)
class Own(Standard):
    name: ClassVar[str] = "own"
    {claim}

class OwnCore(TextCore):
    def {method}:
        {body}

CORES = {{"own": OwnCore}}
"""
FORWARD, STEP = "forward(self, q, k, v, causal=False)", "step(self, q, k, v, state)"


def own_mechanism(path, body, method=FORWARD, claim=""):
    """Write a mechanism with this method to a file; the place of it, as it is asked for."""
    path.write_text(MECHANISM.format(body=body, method=method, claim=claim))
    return f"{path}:Own"


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
