"""The page of mechanisms says what the registry knows."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from attnprof import registry
from attnprof.papers.checks import VERDICTS
from attnprof.papers.documents import DOCUMENTS
from attnprof.papers.replay import committed
from attnprof.units import setting_text
from tests.structure.command_flags import flags_in, flags_of

PAGE = Path(__file__).parents[2] / "docs" / "mechanisms.md"
ABILITIES = ("causal", "decode", "grouped_kv", "value_width", "cross", "attend")


def section(name):
    """The text below a mechanism's heading."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def test_the_page_says_of_each_mechanism_its_parameters_orders_and_what_it_supports():
    text = PAGE.read_text(encoding="utf-8")
    for name in registry.names():
        spec, part = registry.get(name), section(name)
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


DERIVING = PAGE.with_name("deriving.md")


def between(text, start, end):
    """What stands between two marks of a page, without fences."""
    block = text.split(start, 1)[1].split(end, 1)[0]
    return "\n".join(line for line in block.splitlines() if not line.startswith("```")).strip()


def test_the_example_of_the_deriving_page_is_what_comes_out(attnprof, tmp_path, monkeypatch):
    text = DERIVING.read_text(encoding="utf-8")
    (tmp_path / "my.py").write_text(between(text, "```python", "```\n"), encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "100")
    program, *words = shlex.split(between(text, "<!-- command -->", "<!-- output -->"))
    ended = attnprof(tuple(words))
    assert (program, ended.code) == ("attnprof", 0)
    shown = between(text, "<!-- output -->", "<!-- end -->").splitlines()
    written = [line.rstrip() for line in ended.out.strip().splitlines()]
    end = shown.index("by operation")  # operations are torch's, and may be others elsewhere
    assert written[:end] == shown[:end]


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


def test_the_pages_that_the_readme_names_are_there():
    root = PAGE.parents[1]
    for page in (root / "README.md", root / "CONTRIBUTING.md", *PAGE.parent.glob("*.md")):
        for name in re.findall(r"\]\((?!http)([^)#]+)(?:#[\w-]+)?\)", page.read_text("utf-8")):
            assert (page.parent / name).exists(), f"{page.name}: {name}"
