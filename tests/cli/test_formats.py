"""Every command in every format: exact data on stdout or in a file, nothing else there."""

import csv
import io
import json
import math
from dataclasses import dataclass, field

import pytest

from attnprof.record import Record, Report, column
from attnprof.render.formats import render_csv, render_markdown
from attnprof.units import format_bytes, format_count, format_time, format_value

COMMANDS = {
    "list": "list",
    "cost": "cost --attention standard,efficient --seq 64",
    "compare": "compare --attention standard,efficient --seq 64",
    "crossover": "crossover --d 8,64",
    "heads": "heads --d-model 64 --seq 100",
    "heatmap": "heatmap --kind formula --seq 4,8 --d-model 2,16 --heads 1,4",
    "verify-formula": "verify-formula 4*N*N standard --scope core",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_json_csv_and_markdown_hold_the_same_records(answered, tmp_path, command):
    shown = {fmt: answered(COMMANDS[command], "-f", fmt) for fmt in ("json", "csv", "markdown")}
    data, rows = shown["json"].json, shown["csv"].csv
    assert data["schema"] == "attnprof/1"
    assert data["command"] == command
    assert set(data["environment"]) >= {"attnprof", "python"}
    assert len(data["records"]) == len(rows) == len(shown["markdown"].out.splitlines()) - 2
    for record, row in zip(data["records"], rows, strict=True):
        assert list(record) == list(row)
        for name, value in record.items():
            if isinstance(value, int) and not isinstance(value, bool):
                assert int(row[name]) == value
    cells = {cell.strip().replace(",", "") for cell in shown["markdown"].out.split("|")}
    numbers = [v for r in data["records"] for v in r.values() if type(v) in (int, float)]
    assert {str(value) for value in numbers} <= cells  # to the last digit, fractions too
    (tmp_path / "saved.json").write_text(shown["json"].out)
    assert Report.load(tmp_path / "saved.json").to_dict() == data


@pytest.mark.parametrize(
    ("command", "fmt"),
    [("list", "table"), ("cost", "json"), ("heads", "csv"), ("compare", "markdown")],
)
def test_a_file_holds_what_stdout_would(answered, tmp_path, command, fmt):
    path, words = tmp_path / "out", COMMANDS[command]
    shown, written = answered(words, "-f", fmt), answered(words, "-f", fmt, f"--output {path}")
    assert (shown.code, written.code) == (0, 0)
    assert (shown.err, written.out) == ("", "")
    assert str(path) in written.err
    plain = "\n".join(line.rstrip() for line in shown.out.splitlines())
    written = path.read_text().rstrip("\n")
    if fmt == "table":  # its last line says who wrote it
        written = written.removesuffix(f"Written by attnprof {command}.").rstrip("\n")
    assert written == plain.rstrip("\n")


@pytest.mark.parametrize(("command", "suffix", "fmt"), [
    ("heatmap", "json", "json"), ("list", "csv", "csv"), ("heads", "CSV", "csv"),
    ("heatmap", "md", "markdown"), ("heads", "html", "html"), ("list", "txt", "table"),
])  # fmt: skip
def test_a_file_s_suffix_names_the_format_unless_one_is_typed(
    answered, tmp_path, command, suffix, fmt
):
    texts = []
    for place, typed in enumerate(("", f"-f {fmt}")):
        path = tmp_path / f"{place}.{suffix}"
        answered(COMMANDS[command], typed, f"--output {path}")
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    answered(COMMANDS[command], "-f json", f"--output {tmp_path}/typed.{suffix}")
    assert json.loads((tmp_path / f"typed.{suffix}").read_text())["command"] == command


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dash_is_stdout(answered, tmp_path, command):
    assert answered(COMMANDS[command], "-f csv -o -") == answered(COMMANDS[command], "-f csv")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True, kw_only=True)
class Sample(Record):
    name: str = column("name")
    count: int | None = column("count", "tokens", "count")
    ratio: float | None = column("ratio", fmt="ratio")
    cells: dict = field(default_factory=dict, metadata={"title": "cells", "format": "text"})
    empty: str | None = column("empty")


SAMPLE = Report(
    "sample",
    [
        Sample(name='a|b,"c"', count=2**60, ratio=math.nan, cells={"k": [1, 2]}),
        Sample(name="line\nbreak", count=None, ratio=0.5),
    ],
)


def test_csv_is_exact_and_quotes_what_must_be():
    rows = list(csv.reader(io.StringIO(render_csv(SAMPLE))))
    assert rows == [
        ["name", "count", "ratio", "cells", "empty"],
        ['a|b,"c"', str(2**60), "", '{"k":[1,2]}', ""],
        ["line\nbreak", "", "0.5", "{}", ""],
    ]


def test_json_has_null_for_nan_and_exact_integers():
    first, second = json.loads(SAMPLE.to_json())["records"]
    assert first["ratio"] is None
    assert first["count"] == 2**60
    assert second["count"] is None


def test_markdown_aligns_numbers_escapes_bars_and_drops_empty_columns():
    lines = render_markdown(SAMPLE).splitlines()
    assert lines[0] == "| name | count (tokens) | ratio | cells |"
    assert lines[1] == "| --- | ---: | ---: | --- |"
    assert lines[2].startswith('| a\\|b,"c" | 1,152,921,504,606,846,976 | – |')
    assert lines[3].startswith("| line break | – | 0.5 |")


@pytest.mark.parametrize(("text", "expected"), [
    (format_count(20_947_008), "20,947,008"),
    (format_count(20_947_008, short=True), "20.9 M"),
    (format_count(999_999, short=True), "999,999"),
    (format_count(27_000_000, short=True), "27.0 M"),
    (format_count(2.5), "2.5"),
    (format_bytes(1023), "1023 B"),
    (format_bytes(1024), "1.00 KiB"),
    (format_bytes(3 * 2**29), "1.50 GiB"),
    (format_time(0.00123), "1.23 ms"),
    (format_time(2.5e-8), "25.0 ns"),
    (format_value(None), "–"),
    (format_value(math.inf, "ratio"), "–"),
    (format_value(True), "yes"),
    (format_value({"bias": False, "window": 4}), "bias=false window=4"),
    (format_value(0.2968, "percent"), "29.68 %"),
    (format_value(1.25e10, "flops_rate"), "12.5 GFLOP/s"),
])  # fmt: skip
def test_numbers_are_written_as_people_read_them(text, expected):
    assert text == expected
