"""``baseline.json``: what each case counted and how long it took, written and read strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnprof.errors import RequestError
from attnprof.gate.cases import Case, Counted, Operation
from attnprof.gate.formulas import formula
from attnprof.gate.validating import WrongError, check_rows
from attnprof.measure.modules import sizes_of
from attnprof.measure.request import PointRequest
from attnprof.record import BaselineRecord, Report
from attnprof.record.reading import read_json
from attnprof.record.recognition import SCHEMA

#: The layout that is written; a change of it gets the next number and an upgrade from this one.
BASELINE_SCHEMA = 2


def _from_1(data: dict[str, Any]) -> dict[str, Any]:
    """Layout 1 did not say of operations what their results are."""
    for record in data["records"] if isinstance(data.get("records"), list) else ():
        rows = record.get("operations") if isinstance(record, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict):
                row.update(dtype="", shape="")
    return data


#: How the JSON of a version becomes that of the next.
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}


@dataclass(frozen=True)
class Baseline:
    """Cases with what they counted and their times, by name; and where that was."""

    cases: Sequence[Case]
    counted: Mapping[str, Counted]
    times_s: Mapping[str, list[list[float]]]
    fingerprint: Mapping[str, Any]
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


def baseline_record(
    case: Case, counted: Counted, times_s: Sequence[Sequence[float]] = ()
) -> BaselineRecord:
    """A case as it is written down."""
    return BaselineRecord(
        case=case.name,
        request=case.request.to_dict(),
        rule=case.rule,
        metrics=dict(counted.metrics),
        formulas=dict(counted.formulas),
        no_formula=counted.no_formula,
        operations=[asdict(row) for row in counted.operations],
        times_s=[list(process) for process in times_s],
        error=counted.error,
    )


def baseline_report(
    records: Sequence[BaselineRecord],
    fingerprint: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    **summary: Any,
) -> Report:
    """What ``attnprof baseline`` writes, of the layout of this version."""
    known = {"baseline_schema": BASELINE_SCHEMA, "fingerprint": dict(fingerprint), **summary}
    return Report("baseline", records, known, environment or {})


def load_baseline(path: str | Path) -> Baseline:
    """A saved baseline, of this layout or an older one.

    Raises :class:`RequestError` for what is no whole, consistent baseline: what is wrong where.
    """
    data = _read(path)
    try:
        data = _upgraded(data)
        rows = check_rows(data.get("records"), formula)
    except WrongError as error:
        raise RequestError(
            f"{path} is no baseline that can be used: {error}; record it again: "
            f"attnprof baseline -o {path}"
        ) from error
    # what a case is called may have changed since
    named = {case_of(record).name: record for record in (BaselineRecord(**row) for row in rows)}
    return Baseline(
        [case_of(record) for record in named.values()],
        {name: counted_of(record) for name, record in named.items()},
        {name: record.times_s for name, record in named.items()},
        data["summary"]["fingerprint"],
        data["summary"],
        data["environment"],
    )


def case_of(record: BaselineRecord) -> Case:
    """The case again: timed where it has times, with formulas where it has them."""
    return Case(
        PointRequest.from_dict(record.request),
        rule=record.rule,
        timed=bool(record.times_s),
        formulas=bool(record.formulas or record.no_formula),
    )


def counted_of(record: BaselineRecord) -> Counted:
    """What the case counted."""
    request = PointRequest.from_dict(record.request)
    return Counted(
        metrics=record.metrics,
        operations=[Operation(**row) for row in record.operations],
        formulas=record.formulas,
        no_formula=record.no_formula,
        sizes=sizes_of(request.workload),
        error=record.error,
    )


def _read(path: str | Path) -> dict[str, Any]:
    """The file's JSON; RequestError says what it is instead."""
    hint = f"record it again: attnprof baseline -o {path}"
    data = read_json(path, hint=hint)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise RequestError(f"{path} is not an {SCHEMA} report (it says: {found}); {hint}")
    if data.get("command") != "baseline":
        raise RequestError(
            f"{path} is a report of '{data.get('command')}', not of baseline; {hint}"
        )
    return data


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """The JSON in the layout of this version."""
    for name in ("summary", "environment"):
        if not isinstance(data.get(name), dict):
            raise WrongError(f"{name} is not an object")
    version = data["summary"].get("baseline_schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise WrongError(f"summary.baseline_schema is {version!r}, not a version from 1 on")
    if version > BASELINE_SCHEMA:
        raise WrongError(
            f"its layout {version} is newer than this attnprof, which reads up to "
            f"{BASELINE_SCHEMA}: upgrade attnprof"
        )
    for older in range(version, BASELINE_SCHEMA):
        data = UPGRADES[older](data)
    if not isinstance(data["summary"].get("fingerprint"), dict):
        raise WrongError("summary.fingerprint is not an object")
    return data
