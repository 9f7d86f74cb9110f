"""Pages of docs/ and the README say what the code knows, and show what their commands print."""

import re
import runpy
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from attnprof import registry
from attnprof.cli import measurement
from attnprof.closed_form.cost_records import QUANTITIES
from attnprof.measure.correctness import TOKENS
from attnprof.measure.request import Budget
from attnprof.measure.sweep import points_of
from attnprof.papers.checks import VERDICTS
from attnprof.papers.documents import DOCUMENTS
from attnprof.papers.replay import committed
from attnprof.record import ProfileRecord
from attnprof.render.plots.results import KINDS
from attnprof.units import setting_text
from attnprof.verify.own_formulas import MACS
from attnprof.verify.printed import COLUMNS, FUNCTIONS, PHASES
from tests.structure.command_flags import flags_in, flags_of

PAGE = Path(__file__).parents[2] / "docs" / "mechanisms.md"
ABILITIES = ("causal", "decode", "grouped_kv", "value_width", "cross", "attend")
DERIVING, MEASURING, REPLAYING = (
    PAGE.with_name(f"{name}.md").read_text(encoding="utf-8")
    for name in ("deriving", "measuring", "replaying")
)


def test_the_page_says_of_each_mechanism_its_parameters_orders_and_what_it_supports():
    text = PAGE.read_text(encoding="utf-8")
    for name in registry.names():
        spec = registry.get(name)
        part = text.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
        assert f"{spec.title}. Document {spec.document}." in part
        assert f"Time {spec.time_order}, memory {spec.memory_order}" in part
        for parameter, value in spec.params.items():
            assert f"`{parameter}={setting_text(value)}`" in part
        can = {ability: getattr(spec.abilities, ability) for ability in ABILITIES}
        assert f"| {name} | {' | '.join('yes' if x else '–' for x in can.values())} |" in text
        assert [x for x in spec.reasons if (spec.refusal(x) in part) is can[x]] == [], name
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["What each supports", *registry.names()]


@pytest.mark.parametrize("name", ["mechanisms", "models"])
def test_a_page_is_what_its_script_writes(name):
    script = runpy.run_path(str(PAGE.with_name(f"{name}.py")))
    text = PAGE.with_name(f"{name}.md").read_text(encoding="utf-8")
    assert text == script["page"](), f"run: python docs/{name}.py"


def test_figures_of_the_gallery_are_small_and_drawn_by_the_commands_above_them():
    script = runpy.run_path(str(PAGE.with_name("gallery.py")))
    text = script["PAGE"].read_text(encoding="utf-8")
    drawn = script["SHOWN"].findall(text)
    assert len(drawn) == text.count("![") == text.count("```console") - 1
    for command, file in drawn:
        assert Path(file).name in command.split()
        assert (PAGE.parent / file).stat().st_size < script["LARGEST"]


#: Files, and commands with exit code and output, as pages show them.
FILES = re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", DERIVING + REPLAYING, re.DOTALL)
EXAMPLES = re.findall(
    r"<!-- command -->\n```\n(.*?)```\n<!-- output (\d) -->\n```(?:text)?\n(.*?)\n```",
    DERIVING + REPLAYING, re.DOTALL,
)  # fmt: skip


@pytest.mark.parametrize(("command", "code", "shown"), EXAMPLES)
def test_a_command_gives_what_the_page_shows(attnprof, command, code, shown, tmp_path, monkeypatch):
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "100")
    program, *words = shlex.split(command)
    ended = attnprof(tuple(words))
    assert (program, ended.code) == ("attnprof", int(code))
    # operations are torch's, and may be others elsewhere
    printed, expected = (text.partition("by operation")[0].strip() for text in (ended.out, shown))
    assert [line.rstrip() for line in printed.splitlines()] == expected.splitlines()


def test_the_pages_have_a_match_and_an_erratum_and_every_file_they_use():
    assert [code for _, code, _ in EXAMPLES] == ["0", "1", "0", "1", "0"]
    assert [name for name, _ in FILES] == ["my.py", "linformer.py", "linformer.csv", "table1.csv"]
    assert "by operation" in EXAMPLES[0][2]


def test_the_lists_of_the_page_on_replaying_are_complete_and_its_python_runs(capsys):
    rules = REPLAYING.split("## How formulas are read and compared")[1]
    for name in (*QUANTITIES, MACS, *COLUMNS, *PHASES):
        assert f"`{name}`" in rules or f"--phase {name}" in rules, name
    assert " ".join(FUNCTIONS) in rules
    exec(re.findall(r"```python\n(from attnprof.*?)```", REPLAYING, re.DOTALL)[0], {})
    assert capsys.readouterr().out.startswith("match ")


def test_the_page_on_measuring_names_fields_figures_defaults_and_a_grid_that_are_there(tmp_path):
    cells = re.findall(r"^\| (`.*?) \|", MEASURING, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(named) > 20
    assert named <= {item.name for item in fields(ProfileRecord)}
    (tmp_path / "grid.toml").write_text(re.search(r"```toml\n(.*?)```", MEASURING, re.DOTALL)[1])
    points = points_of(measurement.grids_from_file(tmp_path / "grid.toml"), Budget())
    assert len(points) == 2 * 6 + 2 * 2 * 2
    assert [kind for kind in KINDS if f"`{kind}`" not in MEASURING] == []
    assert f"at {TOKENS} tokens" in MEASURING
    assert f"After {Budget().warmup_s} s of warm-up" in MEASURING


#: Pages by the commands whose flags they name.
FLAGS = {
    "gating": ("check", "baseline", "history"), "measuring": ("profile", "sweep", "plot"),
    "replaying": ("verify-formula",), "reproducing": ("reproduce",), "tradeoff": ("tradeoff",),
}  # fmt: skip
PLUGIN = PAGE.parents[1] / "attnprof" / "gate" / "plugin.py"
#: Flags of other programs that they name, too.
OTHERS = {
    "gating": flags_in(PLUGIN.read_text(encoding="utf-8")),
    "measuring": {"--nthreads", "--resources"},  # Dask's
    "replaying": {"--metric"},
}


@pytest.mark.parametrize("page", FLAGS)
def test_every_flag_of_a_page_is_one(page):
    named = flags_in(PAGE.with_name(f"{page}.md").read_text(encoding="utf-8"))
    named -= OTHERS.get(page, set())
    assert len(named) > {"replaying": 10, "reproducing": 8}.get(page, 0)
    assert named <= flags_of(*FLAGS[page])


@pytest.mark.parametrize("number", DOCUMENTS)
def test_the_reports_count_the_committed_verdicts(number):
    reports = PAGE.parents[1] / "reports" / "papers"
    verdicts = list(committed(number).values())
    page = (reports / "reproduction.md").read_text(encoding="utf-8")
    counts = " | ".join(str(verdicts.count(verdict)) for verdict in VERDICTS)
    named = f"| {number} {DOCUMENTS[number].title} | {len(verdicts)} | {counts} | 0 |"
    assert named in page, "write them again: attnprof reproduce --all --reports reports/papers"
    readme = (reports / number / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([\w.]+)\)", readme):
        assert (reports / number / name).is_file()


@pytest.mark.parametrize("name", ["README.md", "docs/choosing.md"])
def test_a_page_shows_what_its_commands_print(attnprof, name, monkeypatch):
    script = runpy.run_path(str(PAGE.with_name("examples.py")))
    monkeypatch.setenv("COLUMNS", str(script["WIDTH"]))

    def output_of(command, folder):  # in this process, which has imported torch
        monkeypatch.chdir(folder)
        ended = attnprof(command)
        assert not ended.code
        return "\n".join(line.rstrip() for line in ended.out.splitlines()).strip("\n") + "\n"

    monkeypatch.setitem(script["page"].__globals__, "output_of", output_of)
    (file,) = (x for x in script["PAGES"] if x == PAGE.parents[1] / name)
    assert file.read_text(encoding="utf-8") == script["page"](file), "run: python docs/examples.py"


def test_a_picture_of_a_terminal_is_what_its_script_draws_and_loads_nothing():
    script = runpy.run_path(str(PAGE.with_name("pictures.py")))
    (drawn,) = script["pictures"]("reproduce").values()
    assert (script["FOLDER"] / "reproduce.svg").read_text(encoding="utf-8") == drawn, (
        "run: python docs/pictures.py"
    )
    for name in script["PICTURES"]:
        svg = (script["FOLDER"] / f"{name}.svg").read_text(encoding="utf-8")
        assert "@font-face" not in svg
        assert len(svg) < 20_000
        assert f"docs/pictures/{name}.svg" in script["README"].read_text(encoding="utf-8")


def test_links_of_pages_lead_to_files():
    root = PAGE.parents[1]
    written = (*PAGE.parent.glob("*.md"), *(root / "reports").rglob("*.md"))
    for page in (root / "README.md", root / "CONTRIBUTING.md", *written):
        for name in re.findall(r"\]\((?!http)([^)#]+)(?:#[\w-]+)?\)", page.read_text("utf-8")):
            assert (page.parent / name).exists(), f"{page.name}: {name}"
