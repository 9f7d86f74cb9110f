"""Runs a report: measures the rows that its table lacks, then writes its page.

    python reports/run.py                        # the reports
    python reports/run.py derive/shapes          # rows that are not in derive/shapes.csv
    python reports/run.py derive/shapes Llama    # these again; the other rows stay
    python reports/run.py derive/shapes --all    # every row again
    python reports/run.py derive/shapes --page   # the page alone, of the rows that are there
    python reports/run.py derive/shapes --set SEED=3   # with another value of a constant

A report is a script with a dataclass ``Row``, ``cases()`` by name, ``rows(name, case)``, and
``page(rows)``, the page's lines. Each case runs in a process of its own and is saved when it ends.
A report may have ``name_of(row)``, a row's case (else its first field), ``PACKAGES``, whose
versions the page tells, ``THREADS`` of torch, ``stopped(name)``, the rows of a case that took more
than ``LIMIT_S``, and ``prepare()``, called before rows are measured. A script with a ``main`` has
arguments of its own.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from rows import apart, earlier, grouped, machine, save  # noqa: E402 - needs the path

DAY_S = 86_400


def main() -> None:
    """Run the report that is asked for, or list all of them."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print("\n".join([(__doc__ or "").strip(), "", *names()]))  # noqa: T201 - the answer
        return
    name = sys.argv[1].removesuffix(".py")
    if name not in names():
        raise SystemExit(f"no report {name}: possible: {', '.join(names())}")
    report = import_module(name.replace("/", "."))
    if hasattr(report, "main"):
        sys.argv = [str(HERE / f"{name}.py"), *sys.argv[2:]]
        report.main()
        return
    arguments = options(sys.argv[2:])
    if hasattr(report, "prepare") and not arguments.page:
        report.prepare()
    fill(report, name, arguments)


def names() -> list[str]:
    """Return the scripts that can be run: those that make rows or have a ``main``."""
    scripts = {path: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*/*.py"))}
    return [
        f"{path.parent.name}/{path.stem}" for path, text in scripts.items()
        if "\ndef rows(" in text or "\ndef main(" in text
    ]  # fmt: skip


def options(words: list[str]) -> argparse.Namespace:
    """Return what is asked of a report."""
    parser = argparse.ArgumentParser(prog="reports/run.py REPORT")
    parser.add_argument("names", nargs="*", help="cases to measure again, by name or its beginning")
    parser.add_argument("--all", action="store_true", help="measure every case again")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(words)


def fill(report: Any, name: str, options: argparse.Namespace) -> None:
    """Measure what is asked or missing, save the rows of each case as it ends, write the page.

    Rows of cases that are no longer there stay until every case is measured again.
    """
    for constant in options.set:
        key, _, text = constant.partition("=")
        setattr(report, key, ast.literal_eval(text))
    path, cases = HERE / f"{name}.csv", report.cases()
    known = grouped(earlier(path, report.Row), getattr(report, "name_of", first_field))
    order = [*cases, *(case for case in known if case not in cases and not options.all)]
    todo = [] if options.page else wanted(options, list(cases), known)
    for case in todo:
        known[case] = measured(report, case, cases[case])
        save(path, report.Row, [row for each in order for row in known.get(each, [])])
    rows = [row for each in order for row in known.get(each, [])]
    write_page(report, name, rows, anew=len(todo) / len(order))


def first_field(row: Any) -> Any:
    """Return the value of a row's first field."""
    return getattr(row, fields(row)[0].name)


def wanted(options: argparse.Namespace, cases: list[str], known: dict[str, Any]) -> list[str]:
    """Return the cases to measure: all, those named so or beginning so, or those without rows."""
    if options.all:
        return cases
    if not options.names:
        return [case for case in cases if case not in known]
    chosen: list[str] = []
    for one in options.names:
        ways = (str.__eq__, lambda case, one: re.split("[ ,]", case)[0] == one, str.startswith)
        alike = next(filter(None, ([c for c in cases if same(c, one)] for same in ways)), [])
        if not alike:
            raise SystemExit(f"no case {one}: possible: {', '.join(cases)}")
        chosen += [case for case in alike if case not in chosen]
    return chosen


def measured(report: Any, name: str, case: Any) -> list[Any]:
    """Return the rows of a case, made in a process of its own."""
    import torch

    torch.set_num_threads(getattr(report, "THREADS", 1))
    start = time.monotonic()
    limit_s = getattr(report, "LIMIT_S", DAY_S)
    otherwise = report.stopped(name) if hasattr(report, "stopped") else None
    rows: list[Any] | None = apart(lambda: list(report.rows(name, case)), otherwise, limit_s)
    if rows is None:
        raise SystemExit(f"{name} failed")
    sys.stderr.write(f"{name}: {len(rows)} rows, {time.monotonic() - start:.1f} s\n")
    return rows


def write_page(report: ModuleType, name: str, rows: list[Any], *, anew: float) -> None:
    """Write the page; it keeps what it says of the machine that made the rows that are not new.

    ``anew`` is the share of cases that were measured now.
    """
    path = HERE / f"{name}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    earlier = re.search(r"^Measured with (.*?)(; some rows later.*)?\.$", text, re.MULTILINE)
    where, later = earlier.groups("") if earlier and anew < 1 else ("", "")
    if anew:
        here = machine(getattr(report, "PACKAGES", ("torch",)))
        later = f"; some rows later with {here}" if where else ""
        where = where or here
    csv = f"{path.stem}.csv"
    origin = f"Written by `python reports/run.py {name}`; all rows are in [{csv}]({csv})."
    title, *rest = report.page(rows)
    lines = [title, "", origin, f"Measured with {where}{later}.", "", *rest]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
