"""Read and write ``baseline.json``: the counts and times of each case.

:func:`baseline_report` makes the file, :func:`load_baseline` reads it. Every field is checked then:
an edited or damaged baseline is refused, not guessed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, get_args, get_origin, get_type_hints

from attnprof.arguments import shown
from attnprof.errors import AttnprofError, RequestError
from attnprof.gate.changes import without_views
from attnprof.gate.counts import Case, Counted, Operation, name_of
from attnprof.gate.exact import formula
from attnprof.gate.rules import rule_named
from attnprof.measure.request import PointRequest
from attnprof.record import BaselineRecord, Report
from attnprof.record.files import read_json
from attnprof.record.recognition import SCHEMA
from attnprof.record.report import fits, type_text

#: The layout that is written. Older ones are read as they are: layout 1 lacked the results of
#: operations, layout 2 had a row for every view, too.
BASELINE_SCHEMA = 3


@dataclass(frozen=True)
class Baseline:
    """A file of cases by name: counts, times, and the machine they were taken on."""

    cases: Sequence[Case]
    counted: Mapping[str, Counted]
    times_s: Mapping[str, list[list[float]]]
    fingerprint: Mapping[str, Any]
    summary: Mapping[str, Any] = field(default_factory=dict)


def baseline_record(
    case: Case, counted: Counted, times_s: Sequence[Sequence[float]] = ()
) -> BaselineRecord:
    """Return a case with its counts and times as one record of the file."""
    counts = asdict(replace(counted, operations=without_views(counted.operations)))
    return BaselineRecord(
        case=case.name, request=case.request.to_dict(), rule=case.rule,
        times_s=[list(process) for process in times_s], **{name: counts[name] for name in _COUNTED},
    )  # fmt: skip


#: Fields that a record takes from :class:`Counted`.
_COUNTED = ("metrics", "formulas", "no_formula", "operations", "error")


def baseline_report(
    records: Sequence[BaselineRecord],
    fingerprint: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    **summary: Any,
) -> Report:
    """Return the report that ``attnprof baseline`` writes, in this version's layout."""
    facts = {"baseline_schema": BASELINE_SCHEMA, "fingerprint": dict(fingerprint), **summary}
    return _Compact("baseline", records, facts, environment or {})


class _Compact(Report):
    """A report saved with one line for each field of a record and each operation."""

    def to_json(self) -> str:
        """Return the JSON text, with a newline at its end."""
        shell = Report(self.command, (), self.summary, self.environment).to_json()
        records = []
        for record in self.to_dict()["records"]:
            texts = {name: json.dumps(value, allow_nan=False) for name, value in record.items()}
            if rows := ",\n    ".join(map(json.dumps, record["operations"])):
                texts["operations"] = f"[\n    {rows}\n   ]"
            lines = [f"   {json.dumps(name)}: {text}" for name, text in texts.items()]
            records.append("  {\n" + ",\n".join(lines) + "\n  }")
        return shell.removesuffix("[]\n}\n") + "[\n" + ",\n".join(records) + "\n ]\n}\n"


def load_baseline(path: str | Path) -> Baseline:
    """Return a saved baseline; :class:`RequestError` names the place in the file that is wrong."""
    hint = "give a file that attnprof baseline wrote, or record one: attnprof baseline -o NEW.json"
    data = read_json(path, hint=hint)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise RequestError(f"{path} is not an {SCHEMA} report (it says: {schema}); {hint}")
    if (command := data.get("command")) != "baseline":
        raise RequestError(f"{path} is a report of '{command}', not of baseline; {hint}")
    try:
        _check_summary(data)
        records = _checked_records(data.get("records"))
    except RequestError as error:
        hint = f"or record it again: attnprof baseline -o {quote(str(path))}"
        raise RequestError(f"{path} is no baseline that can be used: {error}; {hint}") from error
    cases, counted = [], {}
    as_guessed = data["summary"].get("as_guessed") or ()  # older versions lack it
    for name, record in records.items():
        request = PointRequest.from_dict(record.request)
        # timed if the record has times, with formulas if it has formulas
        formulas = bool(record.formulas or record.no_formula)
        cases.append(Case(request, record.rule, bool(record.times_s), formulas))
        fields = {item: getattr(record, item) for item in _COUNTED}
        more = {"sizes": request.workload.by_symbol(), "as_guessed": name in as_guessed}
        counted[name] = Counted.from_dict({**fields, **more})
    times = {name: record.times_s for name, record in records.items()}
    return Baseline(cases, counted, times, data["summary"]["fingerprint"], data["summary"])


def _check_summary(data: Mapping[str, Any]) -> None:
    """Raise RequestError unless the summary has a layout of ours and a fingerprint."""
    for name in ("summary", "environment"):
        if not isinstance(data.get(name), dict):
            raise RequestError(f"{name} is not an object")
    version = data["summary"].get("baseline_schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RequestError(f"summary.baseline_schema is {version!r}, not a version from 1 on")
    if version > BASELINE_SCHEMA:
        raise RequestError(
            f"its layout {version} is newer than this attnprof, which reads up to "
            f"{BASELINE_SCHEMA}: upgrade attnprof"
        )
    if not isinstance(data["summary"].get("fingerprint"), dict):
        raise RequestError("summary.fingerprint is not an object")


def _checked_records(rows: Any) -> dict[str, BaselineRecord]:
    """Return all records by today's name of their case; RequestError names the row."""
    _check(rows, list[Any], "records")
    if not rows:
        raise RequestError("it has no cases")
    records: dict[str, BaselineRecord] = {}
    for place, row in enumerate(rows):
        case = row.get("case") if isinstance(row, dict) else None
        where = f"records[{place}]" + (f" ({case})" if isinstance(case, str) else "")
        try:
            name = _checked_name(row)
        except (AttnprofError, ValueError) as error:
            raise RequestError(f"{where}: {error}") from error
        if name in records:
            raise RequestError(f"{where}: records[{[*records].index(name)}] is the same case")
        records[name] = BaselineRecord(**row)
    return records


def _checked_name(row: Any) -> str:
    """Return the name of a row's case after checking every field of the row."""
    _check(row, BaselineRecord, "")
    _check(row["operations"], list[Operation], "operations")
    _check(row["request"], PointRequest, "request")
    _check_values(row)
    rule_named(row["rule"])
    request = PointRequest.from_dict(row["request"])
    assert request.workload  # its sizes and names are checked there
    sizes = name_of(replace(request, params={})).rstrip("]")  # usual parameters may change
    if not row["case"].startswith(sizes):
        raise RequestError(f"its request is {name_of(request)}")
    if row["error"] is None and not row["metrics"]:
        raise RequestError("it has neither metrics nor an error")
    return name_of(request)


def _check_values(row: Mapping[str, Any]) -> None:
    """Raise RequestError unless counts are >= 0, times > 0 and formulas can be read."""
    rows = {f"operations[{i}]": operation for i, operation in enumerate(row["operations"])}
    for where, numbers in {"metrics": row["metrics"], **rows}.items():
        for name, value in numbers.items():
            if isinstance(value, int) and value < 0:
                raise RequestError(f"{where}.{name} is {value}, below 0")
    for i, process in enumerate(row["times_s"]):
        for k, seconds in enumerate(process):
            if seconds <= 0:
                raise RequestError(f"times_s[{i}][{k}] is {seconds}: a time is above 0")
    for name, text in row["formulas"].items():
        try:
            formula(text)
        except ValueError as error:
            raise RequestError(f"formulas.{name}: {error}") from error


#: Fields that may be missing in a file; classes not listed need every field.
_OPTIONAL: dict[Any, set[str]] = {
    PointRequest: set(get_type_hints(PointRequest))
    - {"mechanism", "seq_len", "num_heads", "head_dim", "budget"},
    Operation: {"dtype", "shape"},
}


def _check(value: Any, hint: Any, where: str) -> None:
    """Raise RequestError for the innermost value that is not of its annotated type."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if is_dataclass(kind):
        _check(value, dict[str, Any], where)
        at = f"{where}." if where else ""
        hints = get_type_hints(kind)
        if unknown := sorted(set(value) - set(hints)):
            raise RequestError(f"{at}{unknown[0]} is not known")
        if missing := sorted(set(hints) - _OPTIONAL.get(kind, set()) - set(value)):
            raise RequestError(f"{at}{missing[0]} is missing")
        for name, item in value.items():
            _check(item, hints[name], f"{at}{name}")
    elif inner and isinstance(value, (dict, list)) and issubclass(type(value), kind):
        pairs: Any = enumerate(value) if isinstance(value, list) else value.items()
        place = "{}[{}]" if isinstance(value, list) else "{}.{}"
        for name, item in pairs:
            _check(item, inner[-1], place.format(where, name))
    elif not fits(value, hint):
        raise RequestError(f"{where or 'it'} is {shown(value)}, not {type_text(hint)}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{where} is {value}, not a finite number")
