"""The page of mechanisms says what the registry knows."""

import runpy
from pathlib import Path

import pytest

from attnprof import registry
from attnprof.units import setting_text

PAGE = Path(__file__).parents[2] / "docs" / "mechanisms.md"


def section(name):
    """The text below a mechanism's heading."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", registry.names())
def test_the_page_has_every_parameter_and_order(name):
    spec, text = registry.get(name), section(name)
    assert f"{spec.title}. Document {spec.document}." in text
    assert f"Time {spec.time_order}, memory {spec.memory_order}" in text
    for parameter, value in spec.params.items():
        assert f"`{parameter}={setting_text(value)}`" in text


@pytest.mark.parametrize("name", registry.names())
def test_the_page_has_every_refusal_with_its_reason(name):
    spec, text = registry.get(name), section(name)
    for ability in ("causal", "decode", "grouped_kv", "value_width", "cross", "attend"):
        assert (spec.refusal(ability) in text) is not getattr(spec.abilities, ability)


def test_the_page_names_nothing_else():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line[3:] for line in lines if line.startswith("## ")] == registry.names()


def test_the_page_is_what_its_script_writes():
    script = PAGE.with_suffix(".py")
    written = runpy.run_path(str(script))["page"]()
    assert PAGE.read_text(encoding="utf-8") == written, f"run: python docs/{script.name}"
