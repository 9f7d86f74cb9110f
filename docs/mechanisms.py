"""Writes the sections of docs/mechanisms.md from the registry: python docs/mechanisms.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attnprof import registry
from attnprof.mechanism import Mechanism
from attnprof.units import setting_text

PAGE = Path(__file__).with_suffix(".md")
#: The heading from which on the page is written here; above it, it is written by hand.
FIRST = "## What each supports\n"
#: What a mechanism may take besides queries, keys and values of one length, and its heading.
ABILITIES = {
    "causal": "causal", "decode": "decoding", "grouped_kv": "grouped keys and values",
    "value_width": "own value width", "cross": "cross-attention", "attend": "`attnprof.attend`",
}  # fmt: skip
MATRIX_NOTES = """
Grouped keys and values: fewer heads of keys and values than of queries (`num_kv_heads`). Own value
width: values wider or narrower than queries and keys (`value_head_dim`). Cross-attention: keys and
values of another length (`kv_seq_len`). `attnprof.attend`: runs on given q, k and v, without a
layer. Asking for anything else is refused with the reason.
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
    by_hand = PAGE.read_text(encoding="utf-8").partition(FIRST)[0]
    sections = ("\n".join(_section(name)) for name in registry.names())
    return by_hand + "\n".join([*_matrix(), *sections])


def _matrix() -> Iterator[str]:
    """What each mechanism supports."""
    yield FIRST
    yield f"| mechanism | {' | '.join(ABILITIES.values())} |"
    yield f"|---|{':---:|' * len(ABILITIES)}"
    for name in registry.names():
        can = registry.get(name).abilities
        yield f"| {name} | {' | '.join('yes' if getattr(can, a) else '–' for a in ABILITIES)} |"
    yield MATRIX_NOTES


def _section(name: str) -> Iterator[str]:
    spec = registry.get(name)
    yield f"## {name}\n"
    yield f"{spec.title}. Document {spec.document}. {_definition(spec)}\n"
    params = ", ".join(f"`{key}={setting_text(value)}`" for key, value in spec.params.items())
    yield f"- Parameters (default): {params}"
    for key, meaning in spec.counted.items():
        yield f"- `{key}`: {meaning}"
    yield f"- Time {spec.time_order}, memory {spec.memory_order}{_exceptions(spec)}"
    # what sets this mechanism apart, not that it lacks what most lack
    for ability in spec.reasons:
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
    exceptions = []
    for known in spec.variants:
        where = (
            " ".join(f"`{k}={setting_text(v)}`" for k, v in known.params.items()) or "by default"
        )
        exceptions.append(f"{where}: {known.time_order}, {known.memory_order} ({known.reason})")
    return "".join(f"; {text}" for text in exceptions)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
