"""Every command's tables at four widths, against its JSON: whole keys, whole numbers, all there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product

import pytest

from attnprof import units
from attnprof.cli import options
from attnprof.cli.app import main
from attnprof.record import CalibrationRecord, DoctorRecord, GrowthRecord, ProfileRecord, Report
from attnprof.render.formats import print_tables

WIDTHS = (80, 100, 120, 160)
SEVEN = (
    "standard", "sdpa", "linear", "performer", "taylor-direct", "taylor-efficient", "taylorshift",
)  # fmt: skip
LENGTHS, D_MODELS = (1024, 16_384), (512, 1024)
MADE_ON = {"device_name": "a processor", "threads": 2, "torch": "2.13"}


# -- what is read from the text ----------------------------------------------------------
@dataclass
class Part:
    """A drawn part of a table: its rows' cells, what is told once for all rows above it."""

    rows: list[list[str]]
    told: dict[str, str]


def parts_of(text: str) -> list[Part]:
    """The parts of all tables: what stands between a rule and the next blank line."""
    found, told, part = [], {}, None
    for line in text.splitlines():
        if re.fullmatch(r"─+", line.strip()):
            part = Part([], told)
            found.append(part)
        elif not line.strip():
            part = None
        elif part:
            part.rows.append(re.split(r"\s{2,}", line.strip()))
        elif line.startswith("In every row: "):
            told = dict(one.rsplit(" ", 1) for one in line[14:].removesuffix(".").split(", "))
    return found


def values_in(data):
    """All numbers of a JSON value."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from values_in(item)
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield data


def texts_of(value):
    """How a number may be written: short or exact, with or without a unit."""
    if isinstance(value, int):
        yield from (f"{value}", f"{value:,} B", units.format_count(value))
        yield units.format_count(value, short=True)
    for write in (
        units.format_bytes, units.format_time, units.format_rate, units.format_number,
        lambda v: units.format_rate(v, "B/s"),
    ):  # fmt: skip
        yield write(value)
    yield from (units.format_ratio(value), f"{value:,} s")
    yield from (f"{value:,.{digits}f}" for digits in (0, 2, 3, 4, 6))
    yield from (f"{value:,}", f"{100 * value:.2f} %", f"{100 * value:.2f}")


NUMBER = re.compile(r"-?[\d.,]+( ([kMGTPEZY]|[KMGTPE]?i?B|[mµn]?s|[kMGTP]?(FLOP|B)/s|%|×))?")


# -- the commands ------------------------------------------------------------------------
@dataclass
class Shown:
    """A request: its words, or its report made once; the keys its tables may have."""

    words: str | tuple[str, ...] | Callable[[], Report]
    keys: Callable[[dict], list[set[tuple[str, ...]]]]


def by(*names):
    """Keys by fields of the records."""
    return lambda data: [{tuple(_key(r[name]) for name in names) for r in data["records"]}]


def _key(value):
    return f"{value:,}" if isinstance(value, int) else str(value)


def crossover_keys(data):
    unit = {"flops": "FLOPs", "entries": "memory, entries", "bytes": "memory, bytes"}
    rows = data["records"]
    forms = {
        f"{'FLOPs' if r['metric'] == 'flops' else 'memory'} ({r['kind']})"
        for r in rows if r["closed_form"]
    }  # fmt: skip
    return [
        {(str(r["head_dim"]), unit[r["unit"]], r["kind"]) for r in rows},
        {(name,) for name in forms},
    ]


def heads_keys(data):
    rows, named = data["records"], {"flops": "FLOPs", "peak_entries": "Entries"}
    return [
        {(f"{r['num_heads']:,}", f"{r['head_dim']:,}") for r in rows},
        {(r["mechanism"], named[r["quantity"]], r["kind"]) for r in data["summary"]["optima"]},
        {
            (f"{r['mechanism']}, {r['kind']} {named[r['quantity']]}",)
            for r in data["summary"]["optima"]
            if r["optimum_head_dim"]
        },
    ]


def cost_keys(data):
    """Stages and totals of each mechanism and length."""
    rows = [r for r in data["records"] if r["kind"] == "formula"]
    blocks = {(r["mechanism"], r["seq_len"]): [set(), set()] for r in rows}
    named = {"flops": "FLOPs", "matmul_flops": "matmul FLOPs", "peak_bytes": "peak memory",
             "state_entries": "decoding state (entries)"}  # fmt: skip
    for r in rows:
        total = r["stage"] == "total"
        quantity = named.get(r["quantity"], r["quantity"].replace("_", " "))
        blocks[r["mechanism"], r["seq_len"]][total].add((quantity if total else r["stage"],))
    return [keys for block in blocks.values() for keys in block]


def profiled() -> Report:
    """The factorial request, measured by nobody: each number is another one."""
    records = []
    for place, (name, n, width) in enumerate(product(SEVEN, LENGTHS, D_MODELS)):
        numbers = {
            item.name: (1234.5 + place) * 1e-6 if item.metadata["format"] == "time"
            else 0.12345 + place / 1000 if item.metadata["format"] in ("percent", "number")
            else 12_345_678_901 * (place + 1) + len(item.name)
            for item in fields(ProfileRecord) if units.is_numeric(item.metadata["format"])
        }  # fmt: skip
        sizes = {"batch_size": 1, "seq_len": n, "d_model": width, "num_heads": 8,
                 "head_dim": width // 8}  # fmt: skip
        records.append(ProfileRecord(
            mechanism=name, **{**numbers, **sizes, "compile_s": None}, dtype="float32",
            device="cpu", phase="forward", causal=False, bound="memory",
        ))  # fmt: skip
    roofline = {"flops_per_s": {"float32": 1e11}, "bytes_per_s": 1e10, "device": "a processor",
                "source": "calibrated"}  # fmt: skip
    return Report("sweep", records, {"roofline": roofline}, MADE_ON)


def grown() -> Report:
    records = [
        GrowthRecord(
            mechanism=name, variant=name, scope="core", phase="forward", causal=False, num_heads=1,
            head_dim=64, dtype="float32", quantity=quantity, kind="formula", source="closed form",
            claimed_order="N log N", declared_order="N log N", claimed_exponent=1.1,
            found_exponent=1.25 + place / 100, verdict="grows faster", expected=True,
            seq_lens=list(LENGTHS), reason="the peak is in maps, first block",
        )
        for place, (name, quantity) in enumerate(
            product((*SEVEN, "longformer impl=dense-mask"), ("flops", "peak_bytes", "matmul_flops"))
        )
    ]  # fmt: skip
    summary = {"seq_lens": list(LENGTHS), "unexpected": [], "miscounted": []}
    return Report("list --verify", records, summary)


def calibrated() -> Report:
    return Report("calibrate", [
        CalibrationRecord(
            device="cpu", device_name="AMD EPYC 7763 64-Core Processor", threads=16, dtype=dtype,
            flops_per_s=rate, bytes_per_s=1.23e10, source="calibrated",
        )
        for dtype, rate in (("float32", 1.2345e12), ("bfloat16", 2.3456e11))
    ])  # fmt: skip


def examined() -> Report:
    records = [
        DoctorRecord(check="torch's FLOP counter", found="works: 1024 FLOPs on fake tensors",
                     status="ok"),
        DoctorRecord(check="memory on CPU", status="broken", found="counts 0 bytes seen by the "
                     "profiler where 32768 are due", advice="profile leaves peak_bytes_measured "
                     "empty"),
    ]  # fmt: skip
    return Report("doctor", records, {"problems": ["memory on CPU"]})


def verify_keys(data):
    (record,) = data["records"]
    return [
        {("printed",), ("ours (closed form)",)},
        {tuple(map(str, shape["sizes"].values())) for shape in record["values"]},
    ]


def reproduce_keys(data):
    return [
        {(number,) for number in data["summary"]["documents"]},
        {(r["claim"],) for r in data["records"] if r["verdict"] == "erratum"},
    ]


FACTORIAL = f"-a {','.join(SEVEN)} --seq 1024,16384"
SHOWN = {
    "compare": Shown(f"compare {FACTORIAL}", by("mechanism")),
    "compare train": Shown(f"compare {FACTORIAL} --phase train --d-model 1024", by("mechanism")),
    "cost": Shown(f"cost {FACTORIAL}", cost_keys),
    "crossover": Shown("crossover --d 64", crossover_keys),
    "crossover of widths": Shown("crossover --d 8,16,32,64,128", crossover_keys),
    "crossover never": Shown("crossover low-rank linformer --d 64,128", crossover_keys),
    "heads": Shown("heads --d-model 1024 --seq 16384", heads_keys),
    "heatmap": Shown(
        "heatmap --no-plot", lambda data: [{(h,) for h in data["summary"]["max_at"]}]
    ),
    "list": Shown("list", by("mechanism")),
    "list --verify": Shown(grown, by("variant")),
    "sweep": Shown(profiled, by("mechanism", "seq_len")),
    "verify-formula": Shown("verify-formula 4*N**2*d*h standard --scope core", verify_keys),
    "reproduce": Shown("reproduce 002", reproduce_keys),
    "calibrate": Shown(calibrated, by("device_name")),
    "doctor": Shown(examined, by("check")),
}  # fmt: skip


def made(words, monkeypatch):
    """The report of a request, and what else its command says of how to draw it."""
    if callable(words):
        return words(), {}
    found = []
    take = lambda report, _fmt, _output, **how: found.append((report, how))  # noqa: E731
    monkeypatch.setattr(options, "deliver", take)
    with pytest.raises(SystemExit):
        main(words.split() if isinstance(words, str) else list(words))
    return found[0]


@pytest.mark.parametrize("name", SHOWN)
def test_keys_and_numbers_are_whole_at_every_width(name, capsys, monkeypatch):
    report, how = made(SHOWN[name].words, monkeypatch)
    data = report.to_dict()
    known = {text for value in values_in(data) for text in texts_of(value)}
    wanted = SHOWN[name].keys(data)
    known |= {text for keys in wanted for key in keys for text in key}
    monkeypatch.setenv("NO_COLOR", "1")

    def drawn(width, exact):
        monkeypatch.setenv("COLUMNS", str(width))
        print_tables(report, **{**how, "exact": exact})
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width
        return parts_of(text)

    for exact in (False, True):
        whole = numbers_by_key(drawn(500, exact), wanted)
        for width in WIDTHS:
            parts = drawn(width, exact)
            cells = [cell.removesuffix(" *") for part in parts for row in part.rows for cell in row]
            assert not [cell for cell in cells if "…" in cell or "..." in cell]
            assert not [cell for cell in cells if NUMBER.fullmatch(cell) and cell not in known]
            narrow = numbers_by_key(parts, wanted)
            told = {text for part in parts for text in part.told.values()}
            for key, numbers in whole.items():
                assert numbers <= narrow[key] | told


def numbers_by_key(parts, wanted):
    """The numbers beside each key, from all parts; each part has all of its keys, and whole."""
    found: dict[tuple[str, ...], set[str]] = {}
    assert parts
    for part in parts:
        standing = [
            keys for keys in wanted if keys and keys <= set(map(key_reader(part, keys), part.rows))
        ]
        assert standing, part
        key_of = key_reader(part, standing[0])
        for row in part.rows:
            numbers = {cell for cell in row if NUMBER.fullmatch(cell)} - set(key_of(row))
            found.setdefault(key_of(row), set()).update(numbers)
    return found


def key_reader(part, keys):
    """Reads the key of a row, together with what is told once for all rows of its part."""
    columns = list(zip(*keys, strict=True))
    told = {
        place: texts[0] for place, texts in enumerate(columns)
        if len(set(texts)) == 1 and texts[0] in part.told.values()
    }  # fmt: skip

    def key_of(row):
        rest = iter(row)
        return tuple(told.get(place) or next(rest, "") for place in range(len(columns)))

    return key_of
