"""Every command's tables at three widths, against its JSON: keys and numbers are whole, and all."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from attnprof import units
from attnprof.cli import options
from attnprof.cli.app import main
from attnprof.record import RecommendRecord, Report
from attnprof.render import formats
from tests.render import reports
from tests.render.reports import FACTORIAL

WIDTHS = (80, 100, 160)


# -- what is read from the text ----------------------------------------------------------
@dataclass
class Part:
    """A drawn part of a table: its rows' cells, its facts, written once above all rows."""

    rows: list[list[str]]
    facts: dict[str, str]


def parts_of(text: str) -> list[Part]:
    """The parts of all tables: what stands between a rule and the next blank line."""
    parts, facts, part = [], {}, None
    for line in text.splitlines():
        if re.fullmatch(r"─+", line.strip()):
            part = Part([], facts)
            parts.append(part)
        elif not line.strip():
            part = None
        elif part:
            unbracketed = re.sub(r" \[ours (.+?)\]", r"  \1", line.strip())
            part.rows.append(re.split(r"\s{2,}", unbracketed))
        elif line.startswith("In every row: "):
            said = line[14:].removesuffix(".").split(", ")
            facts = dict(TOLD.fullmatch(one).groups()[:2] for one in said)
    return parts


def values_in(data):
    """All numbers of a JSON value."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from values_in(item)
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield data


FORMATS = ("count", "bytes", "time", "flops_rate", "bytes_rate", "percent", "ratio", "number")


def texts_of(value):
    """How a number may be written: short or exact, with or without a unit."""
    yield from (f"{value}", f"{value:,}", f"{100 * value:.2f}")
    yield from (f"{value:,} {unit}" for unit in ("B", "s", "FLOP/s", "B/s"))
    yield from (units.format_value(value, fmt, short=s) for fmt in FORMATS for s in (True, False))
    yield from (f"{value:,.{digits}f}" for digits in (0, 2, 3, 4, 6))


NUMBER = re.compile(r"-?[\d.,]+( ([kMGTPEZY]|[KMGTPE]?i?B|[mµn]?s|[kMGTP]?(FLOP|B)/s|%|×))?")
TOLD = re.compile(rf"(.+?) ({NUMBER.pattern}|\S+)")


# -- the commands ------------------------------------------------------------------------
@dataclass
class Shown:
    """A request's words, of several, or a report; the keys its tables may have; how it is drawn."""

    words: str | tuple[str, ...] | Callable[[], Report]
    keys: Callable[[dict], list[set[tuple[str, ...]]]]
    how: dict = field(default_factory=dict)


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


def predict_keys(data):
    points = [r for r in data["records"] if r["skipped"] is None]
    at = {(r["mechanism"], f"{r['seq_len']:,}"): r for r in points}
    return [{*at}, {(*key, row["name"]) for key, r in at.items() for row in r["operations"]}]


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


def verify_keys(data):
    (record,) = data["records"]
    return [
        {("printed",), ("ours (closed form)",)},
        {tuple(map(_key, shape["sizes"].values())) for shape in record["values"]},
    ]


def reproduce_keys(data):
    return [
        {(number,) for number in data["summary"]["documents"]},
        {(r["claim"],) for r in data["records"] if r["verdict"] == "erratum"},
    ]


def claim_keys(data):
    return [reproduce_keys(data)[0], {(r["claim"],) for r in data["records"]}]


def table_keys(data):
    """The first columns of a document's table, as far as they are not made again; two at most."""
    its = data["summary"]["table"]
    made = [any(isinstance(row[name], dict) for row in its["rows"]) for name in its["columns"][:2]]
    labels = its["columns"][: [*made, True].index(True)]
    return [{tuple(_key(row[name]) for name in labels) for row in its["rows"]}]


def figure_keys(data):
    return [{(its["what"],) for its in data["summary"]["figure"]["described"]}]


def derive_keys(data):
    names = {"flops": "FLOPs", "peak_bytes": "peak memory"}
    operations = data["summary"]["phases"]["forward"]["operations"]
    return [
        {(names.get(r["quantity"], r["quantity"].replace("_", " ")),) for r in data["records"]},
        {(one["operation"],) for one in operations},
    ]


def baseline_keys(data):
    """A module's cases without what all of them say; a mechanism's in full."""
    cases = [r["case"] for r in data["records"] if not r["error"]]
    module_keys = {c.partition("[")[2].removesuffix(" h=8]") for c in cases if ":" in c}
    return [{(name,) for name in module_keys}, {(c,) for c in cases if ":" not in c}]


def check_keys(data):
    rows = [(r["case"], r["metric"], r["verdict"]) for r in data["records"]]
    counted = [{row[1:] for row in rows if row[0] == case and ":" not in row[1]} for case in
               dict.fromkeys(row[0] for row in rows)]  # fmt: skip
    return [*counted, {("formula:flops", "ok")}]


def history_keys(data):
    return [{(", ".join(filter(None, (r["metric"], r["machine"]))),) for r in data["records"]}]


def verified_keys(data):
    sizes = {tuple(map(_key, shape["sizes"].values())) for shape in data["records"][0]["values"]}
    return [{("1",), ("2",), ("3",)}, {("printed",), ("ours (from the code)",)}, sizes]


SHOWN = {
    "compare": Shown(f"compare {FACTORIAL}", by("mechanism")),
    "cost": Shown((f"cost {FACTORIAL}", f"cost {FACTORIAL} --d-model 1024"), cost_keys),
    "crossover": Shown("crossover --d 64", crossover_keys),
    "crossover of widths": Shown("crossover --d 8,16,32,64,128", crossover_keys),
    "heads": Shown("heads --d-model 1024 --seq 16384", heads_keys),
    "heatmap": Shown(
        "heatmap --no-plot", lambda data: [{(h,) for h in data["summary"]["max_at"]}]
    ),
    "list": Shown("list", by("mechanism")),
    "list --verify": Shown(reports.grown, by("variant")),
    "derive": Shown(reports.derived, derive_keys),
    "verify-formula": Shown("verify-formula 4*N**2*d*h standard --scope core", verify_keys),
    "verify-formula --table": Shown(reports.verified, verified_keys),
    "profile": Shown(lambda: reports.profiled("profile"), by("mechanism", "seq_len", "d_model")),
    "sweep": Shown(reports.profiled, by("mechanism", "seq_len", "d_model")),
    "calibrate": Shown(reports.calibrated, by("device_name")),
    "predict": Shown(reports.predicted, predict_keys),
    "doctor": Shown(reports.examined, by("check")),
    "baseline": Shown(reports.recorded, baseline_keys),
    "check --verbose": Shown(reports.checked, check_keys, {"verbose": True}),
    "history": Shown(reports.followed, history_keys),
    "reproduce": Shown("reproduce 002", reproduce_keys),
    "reproduce --all": Shown("reproduce 001 --all", claim_keys),
    **{
        words: Shown(words, table_keys)
        for number, table in (("000", 10), ("002", 3), ("004", 6))
        for words in (f"reproduce {number} --table {table}",)
    },
    "reproduce --figure": Shown("reproduce 000 --figure 3", figure_keys),
}  # fmt: skip


def made(words, monkeypatch):
    """The report of requests, and what else their command says of how to draw it.

    The command draws it, too.
    """
    outputs = []
    deliver = options.deliver

    def take(report, *those, **how):
        deliver(report, *those, **how)
        how.pop("without", None)  # columns that only other formats leave out
        outputs.append((report, how))

    monkeypatch.setattr(options, "deliver", take)
    for request in [words] if isinstance(words, str) else words:
        with pytest.raises(SystemExit):
            main(request.split())
    report, how = outputs[0]
    return replace(report, records=[r for one, _ in outputs for r in one.records]), how


@pytest.fixture
def drawn(capsys, monkeypatch):
    """A function that draws a report's tables in so many columns."""
    monkeypatch.setenv("NO_COLOR", "1")
    prepare, known = formats._prepared, {}

    def once(report):  # for all widths
        if id(report) not in known:
            known[id(report)] = report, prepare(report)
        return known[id(report)][1]

    monkeypatch.setattr(formats, "_prepared", once)

    def draw(report, width, **how):
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        formats.print_tables(report, **how)
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width
        return text

    return draw


@pytest.mark.parametrize("name", SHOWN)
def test_keys_and_numbers_are_whole_at_every_width(name, drawn, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = SHOWN[name].words
    report, how = (words(), SHOWN[name].how) if callable(words) else made(words, monkeypatch)
    how = {key: value for key, value in how.items() if key != "exact"}
    by_command = capsys.readouterr().out
    data = report.to_dict()
    numbers = {(type(value), value): value for value in values_in(data)}
    shown_texts = {text for value in numbers.values() for text in texts_of(value)}
    wanted = SHOWN[name].keys(data)
    shown_texts |= {text for keys in wanted for key in keys for text in key}
    shown_texts |= {*re.findall(r'"([^"]*)"', report.to_json())}  # numbers that are texts
    if isinstance(words, str):
        assert drawn(report, 80, **how) in by_command
    for exact in (False, True):
        whole = numbers_by_key(parts_of(drawn(report, 500, **how, exact=exact)), wanted)
        for width in WIDTHS:
            parts = parts_of(drawn(report, width, **how, exact=exact))
            cells = [cell.removesuffix(" *") for part in parts for row in part.rows for cell in row]
            assert not [cell for cell in cells if "…" in cell or "..." in cell]
            assert {cell for cell in cells if NUMBER.fullmatch(cell)} <= shown_texts
            narrow = numbers_by_key(parts, wanted)
            texts = {text for part in parts for text in part.facts.values()}
            for key, those in whole.items():
                assert those <= narrow[key] | texts


def numbers_by_key(parts, wanted):
    """The numbers beside each key, from all parts; each part has all of its keys, and whole."""
    by_key: dict[tuple[str, ...], set[str]] = {}
    assert parts
    for part in parts:
        standing = [
            keys for keys in wanted if keys and keys <= set(map(key_reader(part, keys), part.rows))
        ]
        assert standing, part
        key_of = key_reader(part, standing[0])
        for row in part.rows:
            numbers = {cell for cell in row if NUMBER.fullmatch(cell)} - set(key_of(row))
            by_key.setdefault(key_of(row), set()).update(numbers)
    return by_key


def key_reader(part, keys):
    """Reads the key of a row, together with the facts of its part."""
    columns = list(zip(*keys, strict=True))
    key_of_place = {
        place: texts[0] for place, texts in enumerate(columns)
        if len(set(texts)) == 1 and texts[0] in part.facts.values()
    }  # fmt: skip

    def key_of(row):
        rest = iter(row)
        return tuple(key_of_place.get(place) or next(rest, "") for place in range(len(columns)))

    return key_of


# -- names that are wider than the terminal ----------------------------------------------
LONG_NAMES = {
    "profile": (lambda: reports.profiled("profile", (reports.LONG, "longformer")), {}),
    "derive": (reports.derived, {}),
    "baseline": (lambda: reports.recorded(f"longformer-{'and-longer-' * 8}"), {}),
    "check": (reports.checked, {}),
    "check --verbose": (reports.checked, {"verbose": True}),
    "history": (reports.followed, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_NAMES)
def test_long_names_fold_without_losing_a_letter_and_numbers_stay_whole(name, drawn):
    make, how = LONG_NAMES[name]
    report = make()
    texts = {text for value in values_in(report.to_dict()) for text in texts_of(value)}
    cases = (getattr(r, "case", getattr(r, "mechanism", "")) for r in report.records)
    names = [case.replace(" ", "") for case in cases if "longformer" in case]
    for width in (60, 80, 100):
        text = drawn(report, width, **how)
        assert name == "profile" or reports.LONG in "".join(text.split())
        for part in parts_of(text):
            cells = {cell for row in part.rows for cell in row if NUMBER.fullmatch(cell)}
            assert not cells - texts
            folded = "".join(row[0] for row in part.rows).replace(" ", "")
            assert name != "profile" or folded.count(reports.LONG) == 4
            assert "longformer" not in folded or all(one in folded for one in names)


# -- all digits --------------------------------------------------------------------------
def recommended():
    known = {"scope": "layer", "phase": "train", "causal": True, "batch_size": 2, "d_model": 512,
             "num_heads": 8, "head_dim": 64, "dtype": "float32", "device": "cpu"}  # fmt: skip
    records = [
        RecommendRecord(
            mechanism=name, seq_len=4096, **known, rank=place, time_s=0.0123456 * place,
            ci_low_s=0.0123 * place, ci_high_s=0.0124 * place, peak_bytes=123_456_789 * place,
            exact=place < 3,
        )
        for place, name in enumerate(reports.SEVEN, 1)
    ]  # fmt: skip
    fields = {"answer": "sdpa", "made_of": "", "interval": "", "fastest": []}
    return Report("recommend", records, fields)


@pytest.mark.parametrize("make", [
    recommended, reports.predicted, reports.recorded, reports.profiled,
])  # fmt: skip
def test_exact_tables_have_no_short_numbers(make):
    report = make()
    short = re.compile(r"\d (ms|µs|[KMGT](iB)?)\b")
    assert short.search(formats.render(report, "table"))
    assert not short.search(formats.render(report, "table", exact=True))
