"""The explorer's page: its numbers are Python's, it asks nobody, a browser shows it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from attnprof import registry
from attnprof.api import crossover
from attnprof.cli.app import main
from attnprof.cli.model import ModelRequest
from attnprof.closed_form.cost_records import compare_records, symbolic
from attnprof.crossovers import explorer
from attnprof.crossovers.explorer import Scripts, mechanism_subject, model_subject, page_data
from attnprof.record import ModelRecord, Report
from attnprof.render.html import render_explorer
from attnprof.workload import Workload
from tests.browser import needs_browser, open_page

NAMES = ("standard", "gqa", "sliding-window", "linear", "retnet", "linformer", "mla")
NODE = shutil.which("node")
#: B, N, h, d; odd ones show what is rounded.
SHAPES = [(1, 64, 8, 64), (2, 1000, 3, 40), (3, 8192, 16, 128), (1, 1, 1, 16)]


@pytest.fixture(scope="module")
def scripts():
    return Scripts()


@pytest.fixture(scope="module")
def subjects(scripts):
    return [mechanism_subject(registry.get(name), scripts) for name in NAMES]


@pytest.fixture(scope="module")
def page(subjects, scripts, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "explore.html"
    path.write_text(render_explorer(page_data(subjects, scripts, {}), "1"), encoding="utf-8")
    return path


def place_of(forms, phase, causal, item):
    """Where a form is, by mask where that matters."""
    return forms.get(f"{phase} {causal:d} {item}", forms.get(f"{phase} {item}"))


def of_javascript(scripts, calls):
    """Values of functions by place, each at B, N, h, d."""
    program = (
        f"const F = [{scripts.script()}];"
        f"console.log(JSON.stringify({json.dumps(calls)}.map(([at, s]) => F[at](...s))))"
    )
    done = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(not NODE, reason="no node to run JavaScript with")
def test_functions_of_the_page_give_what_python_counts(subjects, scripts):
    calls, counted = [], []
    for subject in subjects:
        mechanism = registry.get(subject.name)
        for phase, causal in (("forward", 0), ("forward", 1), ("train", 1), ("decode", 0)):
            if {phase, f"{phase} {causal:d}"} & {*subject.reasons}:
                continue
            for b, n, h, d in SHAPES:
                dtype = "bfloat16" if n % 2 else "float32"
                w = Workload(n, h, d, b, phase=phase, causal=bool(causal), dtype=dtype)
                (row,) = compare_records([mechanism], [w], "layer")
                for quantity, forms in subject.forms.items():
                    calls.append((place_of(forms, phase, causal, w.item_size), (b, n, h, d)))
                    counted.append(getattr(row, quantity))
    assert len(counted) > 300
    assert of_javascript(scripts, calls) == pytest.approx(counted, rel=1e-9, abs=0)


def test_every_quantity_has_a_function_or_a_reason(subjects):
    for subject in subjects:
        for phase in ("forward", "train", "decode"):
            for causal in (0, 1):
                known = {q for q, forms in subject.forms.items()
                         if place_of(forms, phase, causal, 4) is not None}  # fmt: skip
                refused = {phase, f"{phase} {causal}"} & {*subject.reasons}
                assert refused or known >= {"flops", "bytes_moved", "peak_bytes"}
    assert "later tokens" in subjects[NAMES.index("linformer")].reasons["forward 1"]


@pytest.mark.skipif(not NODE, reason="no node to run JavaScript with")
def test_a_mechanism_that_switches_does_so_in_javascript():
    scripts, mechanism = Scripts(), registry.get("taylorshift")
    sizes = symbolic(Workload(2, 2, 2, 2))
    place = scripts.add(mechanism.cost(sizes, "core").total.flops)
    shapes = [(1, n, 2, 16) for n in (100, 200, 300, 400, 1000)]
    counts = [mechanism.cost(Workload(n, h, d, b), "core").flops for b, n, h, d in shapes]
    assert of_javascript(scripts, [(place, shape) for shape in shapes]) == counts


@pytest.mark.skipif(not NODE, reason="no node to run JavaScript with")
def test_a_model_is_its_reports_formulas_with_numbers_for_its_layers():
    forms = {
        ("forward", "flops"): "3*B*L*N**2 + 5*L*Min(128, N)",
        ("forward", "bytes_moved"): "9*B*N - L*floor(1000*(7/8)**(B*N))",
        ("decode", "cache_bytes"): "4*B*L*N",
    }
    rows = [ModelRecord(part="total", phase=phase, quantity=quantity, expression=text)
            for (phase, quantity), text in forms.items()]  # fmt: skip
    summary = {"name": "small", "dtype": "bfloat16", "at": {"B": 1, "N": 9, "L": 6},
               "parameters": 7, "phases": {"forward": {"domain": ["N >= 8"]}}}  # fmt: skip
    scripts = Scripts()
    subject = model_subject("small.json", Report("model", rows, summary), scripts)
    places = [(subject.forms[quantity][phase], (2, 10, 0, 0)) for quantity, phase in (
        ("flops", "forward"), ("bytes_moved", "forward"), ("state_bytes", "train"),
    )]  # fmt: skip
    moved = 180 - 6 * int(1000 * (7 / 8) ** 20)
    written_out = [3 * 2 * 6 * 100 + 5 * 6 * 10, moved, 4 * 2 * 6 * 10]
    assert of_javascript(scripts, places) == written_out
    assert subject.command == "attnprof model small.json"
    assert "forward for N >= 8" in subject.notes
    assert set(subject.reasons) == {"train", "decode"}


def test_the_page_asks_nobody_for_anything(page):
    text = page.read_text(encoding="utf-8")
    assert all(f'value="{name}"' in text for name in NAMES)
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)  # licences name where they are from
    assert not re.findall(r"https?://|//[a-z]+\.[a-z]|@import|url\(|fetch\(|XMLHttp|import\(", code)
    assert "default-src 'none'" in text
    assert "Leon Sorokin" in text  # uPlot's licence travels with it


def test_the_command_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["explore", "linear", "sdpa", "--set", "bias=false"])
    assert not ended.value.code
    text = (tmp_path / "explore.html").read_text(encoding="utf-8")
    assert "--set bias=false" in text


#: A choice typed as a person does: the field's value, then its event.
TYPE = """
(() => {{
  const field = document.getElementById("{name}");
  if (field.type === "checkbox") field.checked = {value}; else field.value = {value};
  field.dispatchEvent(new Event("input", {{bubbles: true}}));
  field.dispatchEvent(new Event("change", {{bubbles: true}}));
}})()
"""
CELLS = (
    '[...document.querySelectorAll("#rows tr")].map(row => [...row.children].map(x => x.innerText))'
)
WAIT = "new Promise(done => setTimeout(done, 400))"
#: B, N, h, d, format, phase, mask
SETTINGS = [
    (1, 4096, 32, 128, "bfloat16", "forward", 0), (1, 4096, 32, 128, "bfloat16", "forward", 1),
    (8, 1000, 3, 40, "float32", "train", 1), (1, 2**24, 128, 256, "float16", "forward", 1),
    (1, 65536, 8, 64, "float32", "decode", 0), (4096, 1, 1, 1, "float32", "train", 0),
    (2, 131072, 16, 64, "float32", "train", 1), (1, 17, 256, 1024, "bfloat16", "decode", 0),
    (64, 2048, 12, 64, "float16", "train", 0), (3, 333, 5, 7, "float32", "forward", 0),
]  # fmt: skip
SCALES = {
    "flops": dict(zip(("", *"kMGTPEZY"), (1000**i for i in range(9)), strict=True)),
    "bytes": dict(zip(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"),
                      (1024**i for i in range(7)), strict=True)),
}  # fmt: skip


def value_of(text, scales):
    """The number that a cell shows."""
    number, _, unit = text.removesuffix("*").strip().partition(" ")
    return float(number.replace(",", "")) * scales[unit]


@needs_browser
def test_the_values_shown_at_ten_settings_are_those_of_the_command(page):
    steps = []
    for b, n, h, d, dtype, phase, causal in SETTINGS:
        address = f"a=gqa,linear&B={b}&N={n}&h={h}&d={d}&dtype={dtype}&phase={phase}"
        steps += [f'location.hash = "#{address}&causal={causal}"', WAIT, CELLS]
    page_state = open_page(page, scripts=steps)
    assert page_state.errors == []
    for (b, n, h, d, dtype, phase, causal), rows in zip(
        SETTINGS, page_state.values[2::3], strict=True
    ):
        workload = Workload(n, h, d, b, dtype=dtype, phase=phase, causal=bool(causal))
        counts = compare_records([registry.get(row[0]) for row in rows], [workload], "layer")
        for row, count in zip(rows, counts, strict=True):
            shown = [value_of(row[1], SCALES["flops"]),
                     *(value_of(cell, SCALES["bytes"]) for cell in row[2:5])]  # fmt: skip
            exact = [count.flops, count.bytes_moved, count.peak_bytes, count.state_bytes]
            assert shown == pytest.approx(exact, rel=5.1e-4)


@needs_browser
def test_what_is_typed_moves_curves_and_address_and_no_request_is_made(page):
    choices = {"N": 65536, "h": 16, "d": 64, "B": 2, "dtype": '"float32"', "causal": "true"}
    steps = [TYPE.format(name=name, value=value) for name, value in choices.items()]
    page_state = open_page(page, address="#a=gqa,linear&q=flops", scripts=[
        *steps, WAIT, "location.hash", 'document.getElementById("command").textContent',
        'document.getElementById("crossovers").textContent', "document.documentElement.scrollWidth",
    ])  # fmt: skip
    assert page_state.errors == []
    assert [one for one in page_state.requests if not one.startswith("file:")] == []
    address, command, crossovers, wide = page_state.values[len(steps) + 1 :]
    assert wide <= 1280
    assert "N=65536" in address
    assert command == (
        "attnprof compare -a gqa,linear --seq 65536 --heads 16 --d 64 --batch 2 --phase forward "
        "--dtype float32 --causal --exact"
    )
    assert "takes fewer FLOPs than gqa" in crossovers


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_narrow_page_has_no_sideways_scroll_and_no_errors(page, dark):
    page_state = open_page(page, width=390, height=844, dark=dark,
                     scripts=["document.documentElement.scrollWidth"])  # fmt: skip
    assert page_state.errors == []
    assert page_state.values == [390]


@needs_browser
def test_where_curves_cross_is_what_the_crossover_command_says(page):
    page_state = open_page(
        page, address="#a=gqa,linear&q=flops&d=64&h=1&dtype=float32&causal=1",
        scripts=[WAIT, 'document.getElementById("crossovers").textContent'],
    )  # fmt: skip
    how = {"scope": "layer", "causal": True, "kinds": ("formula",), "metrics": ("flops",)}
    (row,) = crossover("gqa", "linear", head_dim=64, **how).records
    assert f"From {row.first_seq_len:,} tokens on linear" in page_state.values[1]


DEPTHS = (6, 12, 24, 48, 96)
#: Milliseconds until something was painted, and until curves and values were there.
DRAWN = """["first-contentful-paint", "drawn"].map(
  name => performance.getEntriesByName(name)[0].startTime)"""


@needs_browser
def test_the_page_of_five_models_is_small_and_drawn_within_a_second(scripts, tmp_path):
    report = ModelRequest("001-lm-dot", explorer.PHASES, {"B": 1}).report()
    models = []
    for layers in DEPTHS:  # one derivation serves five models
        at = {**report.summary["at"], "L": layers}
        deep = replace(report, summary={**report.summary, "name": f"deep-{layers}", "at": at})
        models.append(model_subject("deep.toml", deep, scripts))
    path = tmp_path / "models.html"
    path.write_text(render_explorer(page_data(models, scripts, {}), "1"), encoding="utf-8")
    assert path.stat().st_size < 1_000_000
    address = f"#a={','.join(model.name for model in models)}"
    # the only time that a test judges, as the page promises it: the best of three loads
    loads = [open_page(path, address=address, scripts=[DRAWN, CELLS]) for _ in range(3)]
    assert [row[0] for row in loads[0].values[1]] == [model.name for model in models]
    assert len({row[1] for row in loads[0].values[1]}) == len(DEPTHS)
    assert min(max(load.values[0]) for load in loads) < 1000
