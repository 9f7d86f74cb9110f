"""The models of the five documents, by name, from ``presets.toml``; models from other files."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from attnprof.errors import NotFoundError
from attnprof.models.config import ModelConfig
from attnprof.record.files import read_toml

#: Keys of a preset that are no fields of its configuration.
_ABOUT = ("document", "table", "notes")


@dataclass(frozen=True)
class Preset:
    """A model of a document: the table that has its sizes, and notes on what else they rest on.

    Its name ends with that of the variant.
    """

    name: str
    variant: str
    document: str
    table: str
    notes: str
    config: ModelConfig


@cache
def presets() -> dict[str, Preset]:
    """Return all presets by name, in the documents' order."""
    path = Path(__file__).with_name("presets.toml")
    return {preset.name: preset for preset in _read(read_toml(path)["family"])}


def preset(name: str) -> Preset:
    """Return a preset; :class:`NotFoundError` says which names come near."""
    if name not in presets():
        near = get_close_matches(name, presets(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {_families()}"
        raise NotFoundError(f"there is no preset, file or folder '{name}': {hint}")
    return presets()[name]


def _families() -> str:
    """Return all names, variants of a model in one: ``001-cifar10-{dot, neural-2}``."""
    variants = defaultdict[str, list[str]](list)
    for one in presets().values():
        variants[one.name.removesuffix(f"-{one.variant}")].append(one.variant)
    return ", ".join(f"{model}-{{{', '.join(names)}}}" for model, names in variants.items())


def load(source: str | Path) -> ModelConfig:
    """Return the configuration of a preset, or of a TOML file whose name ends in ``.toml``.

    A file holds fields of :class:`ModelConfig`; with ``preset = "001-lm-dot"`` it changes those of
    a preset. Raises :class:`RequestError` for other names.
    """
    if not str(source).endswith(".toml"):
        return preset(str(source)).config
    table = read_toml(source)
    base = table.pop("preset", None)
    return ModelConfig.from_table(table) if base is None else preset(base).config.with_(**table)


def _read(families: list[Mapping[str, Any]]) -> Iterator[Preset]:
    """Yield a family's models in every variant; a later table's values replace earlier ones."""
    for family in families:
        for model, sizes in family["models"].items():
            for variant, changed in family["variants"].items():
                values = {**family["common"], **sizes, **changed}
                about = {name: values.pop(name, "") for name in _ABOUT}
                about["notes"] = "; ".join(
                    table["notes"]
                    for table in (family["common"], sizes, changed) if "notes" in table
                )  # fmt: skip
                yield Preset(f"{model}-{variant}", variant, **about,
                             config=ModelConfig.from_table(values))  # fmt: skip
