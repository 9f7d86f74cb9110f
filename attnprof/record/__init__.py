"""What comes out: records by kind, and the report that carries them."""

from attnprof.record.base import FORMATS, Record, column
from attnprof.record.checked import BaselineRecord, CheckRecord, SelfTestRecord
from attnprof.record.columnar import ColumnarRecords
from attnprof.record.derived import DeriveRecord
from attnprof.record.files import write_whole
from attnprof.record.history import HistoryRecord
from attnprof.record.kinds import (
    KINDS,
    CompareRecord,
    CostRecord,
    CrossoverRecord,
    DoctorRecord,
    GrowthRecord,
    HeadsRecord,
    HeatmapRecord,
    MechanismRecord,
)
from attnprof.record.measured import CalibrationRecord, ProfileRecord
from attnprof.record.recognition import SCHEMA
from attnprof.record.report import Report
from attnprof.record.reproduced import ReproduceRecord
from attnprof.record.verified import VerificationRecord

__all__ = [
    "FORMATS",
    "KINDS",
    "SCHEMA",
    "BaselineRecord",
    "CalibrationRecord",
    "CheckRecord",
    "ColumnarRecords",
    "CompareRecord",
    "CostRecord",
    "CrossoverRecord",
    "DeriveRecord",
    "DoctorRecord",
    "GrowthRecord",
    "HeadsRecord",
    "HeatmapRecord",
    "HistoryRecord",
    "MechanismRecord",
    "ProfileRecord",
    "Record",
    "Report",
    "ReproduceRecord",
    "SelfTestRecord",
    "VerificationRecord",
    "column",
    "write_whole",
]
