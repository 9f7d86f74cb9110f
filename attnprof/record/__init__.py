"""What comes out: records by kind, and the report that carries them."""

from attnprof.record.base import KINDS, ColumnarRecords, Record, column
from attnprof.record.crossovers import CrossoverRecord
from attnprof.record.files import write_whole
from attnprof.record.kinds import (
    CompareRecord,
    CostRecord,
    DeriveRecord,
    GrowthRecord,
    HeadsRecord,
    HeatmapRecord,
    MechanismRecord,
    ModelRecord,
    PredictRecord,
    RecommendRecord,
    VerificationRecord,
)
from attnprof.record.measured import (
    BaselineRecord,
    CalibrationRecord,
    CheckRecord,
    DistillRecord,
    DoctorRecord,
    HistoryRecord,
    ProfileRecord,
    ReproduceRecord,
    SelfTestRecord,
    TradeoffRecord,
)
from attnprof.record.recognition import SCHEMA
from attnprof.record.report import Report

__all__ = [
    "KINDS", "SCHEMA", "BaselineRecord", "CalibrationRecord", "CheckRecord",
    "ColumnarRecords", "CompareRecord", "CostRecord", "CrossoverRecord", "DeriveRecord",
    "DistillRecord", "DoctorRecord", "GrowthRecord", "HeadsRecord", "HeatmapRecord",
    "HistoryRecord", "MechanismRecord", "ModelRecord", "PredictRecord", "ProfileRecord",
    "RecommendRecord", "Record", "Report", "ReproduceRecord", "SelfTestRecord", "TradeoffRecord",
    "VerificationRecord", "column", "write_whole",
]  # fmt: skip
