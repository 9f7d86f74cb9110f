"""What attention costs: FLOPs, memory and time, in closed form and on the clock.

Importing this package imports none of torch, sympy, matplotlib and pandas; the functions do,
when they are called.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
# sympy, imported when it is needed, remembers a thousand results: our algebra comes back to more
os.environ.setdefault("SYMPY_CACHE_SIZE", "100000")

#: Where names are that are not in ``api``.
_WHERE = {
    "AttnprofError": "attnprof.errors", "Workload": "attnprof.workload",
    "Cost": "attnprof.costs", "CostTable": "attnprof.costs", "Stage": "attnprof.costs",
    "Report": "attnprof.record",
    "flops_per_token": "attnprof.models.mfu", "fit": "attnprof.models.fit",
}  # fmt: skip
__all__ = [
    "AttnprofError", "Cost", "CostTable", "Report", "Stage", "Workload", "__version__", "attend",
    "build", "cost", "crossover", "derive", "fit", "flops_per_token", "profile", "rule", "sweep",
]  # fmt: skip

if TYPE_CHECKING:
    from attnprof.api import attend, build, cost, crossover, derive, profile, rule, sweep
    from attnprof.costs import Cost, CostTable, Stage
    from attnprof.errors import AttnprofError
    from attnprof.models.fit import fit
    from attnprof.models.mfu import flops_per_token
    from attnprof.record import Report
    from attnprof.workload import Workload


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attnprof' has no attribute '{name}'")
    return getattr(import_module(_WHERE.get(name, "attnprof.api")), name)


def __dir__() -> list[str]:
    return [*__all__]
