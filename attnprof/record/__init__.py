"""Records, the rows of a command's output, and the report that carries them.

Each name is imported when it is first used: most commands make records of one kind.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnprof.record.base import *
    from attnprof.record.crossovers import *
    from attnprof.record.files import *
    from attnprof.record.kinds import *
    from attnprof.record.measured import *
    from attnprof.record.recognition import *
    from attnprof.record.report import *

#: Modules in which a name is looked up, in this order.
_MODULES = ("base", "report", "files", "recognition", "crossovers", "kinds", "measured")
__all__ = [
    "SCHEMA", "BaselineRecord", "CalibrationRecord", "CheckRecord", "ColumnarRecords",
    "CompareRecord", "ComparedRecord", "CostRecord", "CrossoverRecord", "DeriveRecord",
    "DistillRecord", "DoctorRecord", "FitRecord", "FormulaTermRecord", "GrowthRecord",
    "HeadsRecord", "HeatmapRecord", "HistoryRecord", "MechanismRecord", "MfuRecord", "ModelRecord",
    "PredictRecord", "ProfileRecord", "RanksRecord", "RecommendRecord", "Record",
    "ReleasedRecord", "Report", "ReproduceRecord", "SelfTestRecord", "TradeoffRecord",
    "VerificationRecord", "column", "record_kinds", "write_whole",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        module_of_name = import_module(f"attnprof.record.{module}")
        if hasattr(module_of_name, name):
            return getattr(module_of_name, name)
    raise AttributeError(f"module 'attnprof.record' has no attribute '{name}'")
