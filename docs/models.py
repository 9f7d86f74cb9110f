"""Writes the last sections of docs/models.md, fields and presets: python docs/models.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from attnprof.models import ModelConfig, Preset, build, layer_kinds, parts, presets

PAGE = Path(__file__).with_suffix(".md")
#: The heading from which on the page is written here; above it, it is written by hand.
FIRST = "## Fields\n"


def page() -> str:
    """The whole page."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(FIRST)[0]
    return by_hand + "\n".join([*_fields(), *_presets()])


def _fields() -> Iterator[str]:
    yield f"{FIRST}\n| field | unless said |\n|---|---|"
    for item in fields(ModelConfig):
        value = getattr(ModelConfig(), item.name)
        shown = value[0].name if isinstance(value, tuple) else getattr(value, "name", value)
        yield f"| `{item.name}` | {'–' if shown is None else shown} |"
    yield ""


def _presets() -> Iterator[str]:
    """A table a group of models that say the same of themselves."""
    yield "## Presets\n\nThe models of the five documents ([papers.md](papers.md))."
    said: tuple[str, str, str] | None = None
    for preset in presets().values():
        about = (preset.document, preset.table, preset.notes)
        if about != said:
            yield f"\nDocument {preset.document}, {preset.table}{_notes(preset)}.\n"
            yield "| preset | layers | parameters |\n|---|---|---:|"
            said = about
        yield _row(preset)
    yield ""


def _notes(preset: Preset) -> str:
    return f": {preset.notes}" if preset.notes else ""


def _row(preset: Preset) -> str:
    model = build(preset.config, device="meta")
    layers = ", ".join(f"{count} × {kind}" for kind, count in layer_kinds(model).items())
    return f"| `{preset.name}` | {layers} | {sum(parts(model).values()):,} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
