"""Check a module inside a test: its exact counts against a file's or another revision's.

:class:`TestGate` serves the pytest plugin (:mod:`attnprof.gate.plugin`): one gate a session.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from attnprof.arguments import choice
from attnprof.errors import CannotRunError, CheckFailedError, RequestError
from attnprof.gate import rules, trees
from attnprof.gate.baselines import Baseline, baseline_record, baseline_report, load_baseline
from attnprof.gate.changes import causes
from attnprof.gate.check import check_against
from attnprof.gate.counts import Case, Counted, count
from attnprof.gate.exact import compare
from attnprof.gate.trees import RunningTree, current_tree, tree_of
from attnprof.measure.batch import COUNTING
from attnprof.measure.environment import dated_environment, fingerprint
from attnprof.measure.request import PointRequest, configured
from attnprof.measure.sweep import is_module_apart
from attnprof.processes.pool import run_apart
from attnprof.record import BaselineRecord, CheckRecord
from attnprof.workload import SCOPES

_Texts = Sequence[str] | Mapping[str, Any]
#: What records the counts; the plugin adds the file that was typed.
UPDATE = "pytest --attnprof-update"


@dataclass
class TestGate:
    """The gate of a test session: reads ``file`` once, writes it once at the end.

    Names of files are relative to ``root``. With ``update`` new counts are collected for
    :meth:`write`. With ``against``, a git revision or a folder, both trees are counted and timed in
    processes of their own, and the file is left alone.
    """

    __test__ = False  # pytest collects classes of this name

    file: Path
    root: Path
    update: bool = False
    against: str | None = None
    update_command: str = UPDATE
    updated: dict[str, BaselineRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @cached_property
    def _base_tree(self) -> RunningTree:
        """Return the tree to compare with, checked out until :meth:`close`."""
        return self._open.enter_context(tree_of(str(self.against), self.root))

    @property
    def _file_name(self) -> str:
        """Return the file's name, relative to ``root`` if it lies there."""
        inside = self.file.is_relative_to(self.root)
        return str(self.file.relative_to(self.root) if inside else self.file)

    def close(self) -> None:
        """Remove the tree that was checked out."""
        self._open.close()

    @cached_property
    def baseline(self) -> Baseline:
        """Return the file's baseline; one without cases if there is no file."""
        return load_baseline(self.file) if self.file.exists() else Baseline([], {}, {}, {})

    def check(self, *attention: Any, formulas: bool = True, **sizes: Any) -> list[CheckRecord]:
        """Count a case (see :func:`request_for`) and compare it with the file: a record a metric.

        Raises :class:`CheckFailedError` with the named differences where it got worse, other errors
        where it cannot be counted or the file lacks it.
        """
        try:
            signature(request_for).bind(*attention, **sizes)
        except TypeError as error:
            possible = ", ".join([*signature(request_for).parameters, "formulas"])
            raise RequestError(f"attnprof_check: {error}; it takes {possible}") from error
        # a case has one name wherever pytest was started, and whatever a test did
        with contextlib.chdir(self.root):
            case = Case(request_for(*attention, **sizes), formulas=formulas)
            if self.against:
                terms = rules.CheckOptions(budget_s=LIMIT_S)
                with self._base_tree as base, current_tree(self.root) as head:
                    report = check_against([case], base, head, terms)
                grouped = [rules.Cause(**row) for row in report.summary["causes"]]
                return self._accept_or_raise(case, base.label, report.of(CheckRecord), grouped)
            before = self.baseline.counted.get(case.name)
            if self.update:
                return self._record_case(case, before)
            if before is None:
                why = " is not in" if self.file.exists() else ": there is no file"
                raise RequestError(
                    f"{case.name}{why} {self._file_name}; record it by: {self.update_command}"
                )
            now = count_apart(case.request, formulas=False)
            records = compare(case.name, before, now)
            changed = any(record.verdict != rules.OK for record in records)
            if changed and case.formulas and before.formulas:  # formulas take longer
                now = count_apart(case.request, formulas=True)
                records = compare(case.name, before, now)
            grouped = causes(records, {case.name: before}, {case.name: now})
            return self._accept_or_raise(case, self._file_name, records, grouped)

    def _accept_or_raise(
        self, case: Case, base: str, records: list[CheckRecord], causes: Sequence[rules.Cause]
    ) -> list[CheckRecord]:
        """Return the records; if a metric got worse or has no counts, raise the causes."""
        lines = [f"  {cause.verdict} {rules.cause_text(cause)}" for cause in causes]
        verdicts = {record.verdict for record in records}
        if rules.REGRESSED in verdicts:
            if not self.against:  # a library's other version may count other operations
                now, before = fingerprint("cpu"), self.baseline.fingerprint
                lines += [
                    f"  the file was recorded with {name} {before.get(name)}, here is {now[name]}"
                    for name in ("torch", "attnprof") if now[name] != before.get(name)
                ]  # fmt: skip
                lines.append(f"accept it by: {self.update_command}")
            raise CheckFailedError("\n".join([f"{case.name} got worse than {base}:", *lines]))
        if {rules.ERROR, rules.MISSING} & verdicts:
            raise CannotRunError("\n".join([f"{case.name} could not be compared:", *lines]))
        if rules.IMPROVED in verdicts:
            hint = "" if self.against else f"; accept it by: {self.update_command}"
            self.notes.append(f"{case.name} got better than {base}{hint}")
        return records

    def _record_case(self, case: Case, before: Counted | None) -> list[CheckRecord]:
        """Count a case for :meth:`write`; return its records against the counts before."""
        other = self.updated.get(case.name)
        if other is not None and other.request != case.request.to_dict():
            raise RequestError(
                f"two tests ask for {case.name} with other inputs: give a factory of its own, "
                "with another name, to one of them"
            )
        counted = count_apart(case.request, formulas=case.formulas)
        if counted.error is not None:
            raise CannotRunError(f"{case.name} cannot be recorded: {counted.error}")
        times = self.baseline.times_s.get(case.name, [])
        self.updated[case.name] = baseline_record(case, counted, times)
        return compare(case.name, before or counted, counted)

    def write(self) -> None:
        """Write the file if any case was recorded; cases that did not run keep their counts."""
        if not self.updated:
            return
        old, new = self.baseline, dict(self.updated)
        records = []
        for case in old.cases:
            kept = baseline_record(case, old.counted[case.name], old.times_s[case.name])
            records.append(new.pop(case.name, kept))
        machine = old.fingerprint if any(old.times_s.values()) else fingerprint("cpu")
        with contextlib.suppress(OSError):  # then writing fails with the reason
            self.file.parent.mkdir(parents=True, exist_ok=True)
        records += [new[name] for name in sorted(new)]
        baseline_report(records, machine, dated_environment("cpu")).save(self.file)
        note = f"wrote {len(self.updated)} cases to {self._file_name}, {len(new)} of them new"
        self.notes.append(note)

    def carried(self) -> dict[str, Any]:
        """Return the collected counts and notes of this process as plain values."""
        return {"updated": [asdict(r) for r in self.updated.values()], "notes": self.notes}

    def take(self, carried: Mapping[str, Any]) -> None:
        """Add the counts and notes that :meth:`carried` returned in another process."""
        self.updated |= {row["case"]: BaselineRecord(**row) for row in carried["updated"]}
        self.notes += carried["notes"]


def count_apart(request: PointRequest, *, formulas: bool) -> Counted:
    """Count as :func:`count` does, in a fork that may die of the module's code."""
    for name in COUNTING:  # once here, not in every fork
        import_module(name)
    answer = run_apart(lambda: asdict(count(request, formulas)), trees.LIMIT_S)
    if answer.has_value:
        outcome = Counted.from_dict(answer.value)
        if _NO_FORK not in (outcome.error or outcome.no_formula):
            return outcome
        return count(request, formulas)  # a test before has used autograd's threads
    ended = answer.ended
    reason = f": {ended.last_line}" if ended.last_line else ""
    return Counted(error=f"the process that counted it {ended.how}, without an answer{reason}")


_NO_FORK = "autograd's threading in combination with fork"
#: Seconds that times of one case against another revision may take.
LIMIT_S = 60.0


def request_for(
    attention: Any, *, seq: int = 512, d_model: int = 512, heads: int = 8, batch: int = 1,
    phase: str = "forward", causal: bool = False, dtype: str = "float32", scope: str = "layer",
    args: _Texts | None = None, inputs: _Texts | None = None,
    params: Mapping[str, Any] | None = None,
) -> PointRequest:  # fmt: skip
    """Return the request for a mechanism's id, ``my.py:MyAttention``, a class or a function.

    ``args`` and ``inputs`` are as ``--arg`` and ``--input`` of derive take them.
    """
    if heads < 1 or d_model % heads:
        raise RequestError(f"d_model {d_model} cannot be split into {heads} heads")
    choice("scope", scope, SCOPES)
    name = place_of(attention)
    spec = configured(
        [name], params or {}, _texts(args, "="), _texts(inputs, ": "), is_module_apart
    )[0]
    request = PointRequest(
        name, seq, heads, d_model // heads, batch, causal, phase, dtype, scope,
        threads=1, params=spec.params, check=False,
    )  # fmt: skip
    assert request.workload  # refuses sizes and names that are none
    return request


def place_of(attention: Any) -> str:
    """Return the name by which another process can import an object; else RequestError."""
    if isinstance(attention, str):
        return attention
    module, name = (getattr(attention, key, None) for key in ("__module__", "__qualname__"))
    if not name or "<" in name or module in (None, "__main__"):
        raise RequestError(
            f"{name or repr(attention)[:60]} has no name by which it is found again: give a class "
            "or function that a module defines at its top, or 'path/to/file.py:Name'"
        )
    return f"{module}:{name}"


def _texts(texts: _Texts | None, between: str) -> list[str]:
    """Return texts like ``name=value``, also of a mapping."""
    if isinstance(texts, Mapping):
        return [f"{name}{between}{value}" for name, value in texts.items()]
    return list(texts or ())
