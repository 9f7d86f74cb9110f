"""Writes docs/mechanisms.md from the registry: python docs/mechanisms.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attnprof import registry
from attnprof.mechanism import Mechanism
from attnprof.units import setting_text

PAGE = Path(__file__).with_suffix(".md")
ABILITIES = ("causal", "decode", "grouped_kv", "value_width", "cross", "attend")
HEAD = """# Mechanisms

Made by `python docs/mechanisms.py` from what the specifications say of themselves. N: tokens.
`--set name=value` sets a parameter; `attnprof list --verify` checks the orders of growth.
Queries, keys and values are (batch, heads, tokens, head width); softmax is over the keys.
"""
#: One line of mathematics where the specification's first sentence has none.
FORMULAS = {
    "standard": "softmax(Q Kᵀ / sqrt d) V",
    "sdpa": "softmax(Q Kᵀ / sqrt d) V",
    "optimised": "softmax(Q Kᵀ / sqrt d) X, X the head's columns of the input",
    "efficient": "softmax(Q Xᵀ / sqrt d) X, X the head's columns of the input",
    "she": "Extraction: e_i = Σ_{j ≤ i} W_{i-j} x_j",
    "he": "Extraction: e_i = Σ_{j ≤ i} w_{i-j} ⊙ x_j",
    "we": "Extraction: e_i = Σ_{j ≤ i} w_{i-j} ⊙ x_j",
    "me": "Extraction: e_i = Σ_{j ≤ i} w_{i-j} · x_j",
    "linear": "φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1)",
    "performer": "φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1)",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *("\n".join(_section(name)) for name in registry.names())])


def _section(name: str) -> Iterator[str]:
    spec = registry.get(name)
    yield f"## {name}\n"
    yield f"{spec.title}. Document {spec.document}. {_definition(spec)}\n"
    params = ", ".join(f"`{key}={setting_text(value)}`" for key, value in spec.params.items())
    yield f"- Parameters (default): {params}"
    yield f"- Time {spec.time_order}, memory {spec.memory_order}{_exceptions(spec)}"
    for ability in ABILITIES:
        if not getattr(spec.abilities, ability):
            yield f"- It {spec.refusal(ability)}"
    yield ""


def _definition(spec: Mechanism) -> str:
    """The first sentence of the specification, and the formula."""
    text = " ".join((type(spec).__doc__ or "").split()).replace("``", "`")
    sentence = re.split(r"(?<! al)\. ", text, maxsplit=1)[0].rstrip(".") + "."
    formula = FORMULAS.get(spec.name)
    return f"{sentence} {formula}." if formula else sentence


def _exceptions(spec: Mechanism) -> str:
    found = []
    for known in spec.variants:
        where = (
            " ".join(f"`{k}={setting_text(v)}`" for k, v in known.params.items()) or "by default"
        )
        found.append(f"{where}: {known.time_order}, {known.memory_order} ({known.reason})")
    return "".join(f"; {text}" for text in found)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
