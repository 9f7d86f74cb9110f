"""Number formats of weights and caches: bytes an entry, and what a ``config.json`` says of them.

Block formats keep scales beside the numbers: GGUF's by their structs (ggml-common.h), MXFP4 by the
OCP microscaling specification, NVFP4 with one scale in eight bits for 16 entries, AWQ and GPTQ with
a half-precision scale and a zero point of four bits for each group.

A ``quantization_config`` names formats of modules, and modules that stay as they are. Patterns of
names are those of compressed-tensors (a name, ``re:`` and an expression, or a class), of modelopt
(a part of a name, or wildcards) or of transformers (an expression up to a dot, or an ending).
Entry point: :func:`stored_entries`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from math import prod
from typing import Any

from attnprof.errors import RequestError, closest

#: Bytes an entry.
ENTRY_BYTES: Mapping[str, Fraction] = {
    "float32": Fraction(4), "bfloat16": Fraction(2), "float16": Fraction(2), "fp8": Fraction(1),
    "int8": Fraction(1), "int4": Fraction(1, 2) + Fraction(5, 2) / 128, "mxfp4": Fraction(17, 32),
    "nvfp4": Fraction(9, 16), "nf4": Fraction(1, 2) + Fraction(4, 64),
    "q8_0": Fraction(34, 32), "q6_k": Fraction(210, 256), "q5_k": Fraction(176, 256),
    "q4_k": Fraction(144, 256), "q3_k": Fraction(110, 256), "q5_1": Fraction(24, 32),
    "q5_0": Fraction(22, 32), "q4_1": Fraction(20, 32), "q4_0": Fraction(18, 32),
    "q5_k_m": Fraction(176, 256), "q4_k_m": Fraction(144, 256), "q4_k_s": Fraction(144, 256),
    "q3_k_l": Fraction(110, 256), "q3_k_m": Fraction(110, 256), "mxfp4_moe": Fraction(34, 32),
    "fp8_ds_mla": Fraction(1),
    "mxfp4-pack": Fraction(17, 32), "mxfp8": Fraction(33, 32),
}  # fmt: skip
#: Formats of weights, and of caches.
WEIGHTS = tuple(name for name in ENTRY_BYTES if name not in ("fp8_ds_mla", "mxfp4-pack"))
CACHES = (
    "float32", "bfloat16", "float16", "fp8", "fp8_ds_mla", "int8", "nvfp4", "q8_0", "q5_1", "q5_0",
    "q4_1", "q4_0",
)  # fmt: skip
#: Other names of formats.
_ALIASES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "float8_e4m3fn": "fp8", "auto": "",
    "q4": "q4_0", "q8": "q8_0", "fp4": "nvfp4", "q5_k_s": "q5_k", "q3_k_s": "q3_k",
}  # fmt: skip
#: Formats of GGUF files: tables and the head are in blocks, too, and vectors in float32.
GGUF = tuple(name for name in ENTRY_BYTES if re.match(r"q\d_|mxfp4_moe", name))
#: Weights that GGUF's mixtures keep in a finer format, by their GGUF names: their roles, and a
#: pattern of their names in models of transformers.
FINER = {
    "attn_v": (("attention",), r"(v_proj|\.value)\.weight"),
    "attn_output": (("attention",), r"attn\.(o_proj|out_proj|c_proj)\.weight"),
    "ffn_down": (("mlp", "expert", "shared expert"), r"down_proj|\.w2\b|fc2|mlp\.c_proj|_4h_to_h"),
}
#: Methods of ``quantization_config`` that name a format by themselves.
_METHODS = {
    "mxfp4": "mxfp4", "fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "int4", "nvfp4": "nvfp4",
    "mxfp4-pack": "mxfp4-pack", "eetq": "int8", "mxfp8": "mxfp8", "w4a": "int4",
}  # fmt: skip
#: Methods whose ``bits`` are of integers with scales for groups of them.
_GROUPED = ("awq", "gptq", "auto-round")
_GROUPS = "compressed-tensors"  # the method whose patterns are names or classes, or begin with re:


def format_named(name: str, flag: str, possible: tuple[str, ...]) -> str:
    """Return a format by its name or an alias; RequestError if it is not ``possible``."""
    typed = name.strip().lower()
    typed = _ALIASES.get(typed, typed)
    if typed not in possible:
        raise RequestError(f"{flag} {name}: unknown format; {closest(typed, list(possible))}")
    return typed


def finer_layers(layers: int) -> int:
    """Return how many of ``layers`` have finer tensors: the first and last eighth, each third."""
    first, last = layers // 8, 7 * layers // 8
    return sum(i < first or i >= last or (i - first) % 3 == 2 for i in range(layers))


#: GGUF's mixtures: the tensors in a finer format, that format, and a function that returns the
#: number of layers with it, given all layers (llama.cpp, src/llama-quant.cpp).
MIXTURES: Mapping[str, Sequence[tuple[str, str, Callable[[int], int]]]] = {
    **dict.fromkeys(("q5_k_m", "q4_k_m"), (
        ("attn_v", "q6_k", finer_layers), ("ffn_down", "q6_k", finer_layers),
    )),
    "q4_k_s": (
        ("attn_v", "q5_k", lambda n: min(n, 4)), ("ffn_down", "q5_k", lambda n: n // 8),
    ),
    "q3_k_l": tuple((name, "q5_k", lambda n: n) for name in FINER),
    "q3_k_m": (
        ("attn_v", "q5_k", lambda n: min(n, 2)), ("attn_v", "q4_k", lambda n: max(n - 2, 0)),
        ("attn_output", "q4_k", lambda n: n), ("ffn_down", "q5_k", lambda n: n // 16),
        ("ffn_down", "q4_k", lambda n: n - n // 16),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class StoredFormat:
    """A format in ``quantization_config``: its bytes an entry, and patterns of its modules."""

    name: str
    entry: Fraction
    targets: Sequence[str] = ("Linear",)


def file_formats(fields: Mapping[str, Any]) -> list[StoredFormat]:
    """Return the formats that ``quantization_config`` names, one for each group of modules.

    Empty without one, and for one that does not say its format in a way that is known.
    """
    config = quantization_of(fields)
    groups = map(_table, _table(config.get("config_groups")).values())
    with_weights = [(one, _table(one["weights"])) for one in groups if _table(one.get("weights"))]
    formats = []
    for group, weights in [*_named_groups(config), *(with_weights or [(config, config)])]:
        if one := _format(config, weights):
            formats.append(StoredFormat(*one, tuple(_texts(group.get("targets"))) or ("Linear",)))
    return formats


def _named_groups(config: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield modules with a format of their own, and its table.

    Of the expressions in GPTQ's ``dynamic`` and auto-round's ``extra_config`` the first that
    matches counts; ``-:`` leaves modules as they are. modelopt's ``quantized_layers`` name every
    module; the first of the experts stands for all.
    """
    rules = {f"{x}$": table for x, table in _table(config.get("extra_config")).items()}
    for pattern, table in {**_table(config.get("dynamic")), **rules}.items():
        weights = {"bits": 16} if pattern.startswith("-:") else {**config, **_table(table)}
        yield {"targets": [f"re:{re.sub('^[-+]:', '', pattern)}"]}, weights
    by_table = defaultdict[str, list[str]](list)
    tables = _table(config.get("quantized_layers"))
    for name in (x for x in tables if not re.search(r"experts\.[1-9]", x)):
        by_table[str(tables[name])].append(name)
    for names in by_table.values():
        yield {"targets": names}, tables[names[0]]


def _format(config: Mapping[str, Any], weights: Mapping[str, Any]) -> tuple[str, Fraction] | None:
    """Return the format of one group of modules, and its bytes an entry; None if not known.

    Of 16 bits or more it is bfloat16: such modules are not quantised.
    """
    method = str(config.get("quant_method", ""))
    if config.get("load_in_4bit"):  # a scale for 64 entries; doubled, in a byte and one for 256
        twice = config.get("bnb_4bit_use_double_quant")
        scales = Fraction(1, 64) + Fraction(4, 64 * 256) if twice else Fraction(4, 64)
        return "nf4", Fraction(1, 2) + scales
    if config.get("load_in_8bit"):
        return "int8", ENTRY_BYTES["int8"]
    group = _whole(weights.get("group_size"))
    bits = next(filter(None, (_whole(weights.get(x)) for x in ("num_bits", "bits"))), 0)
    bits = bits or _whole(config.get("bits"))
    if bits >= 16:
        return "bfloat16", ENTRY_BYTES["bfloat16"]
    if weights.get("type") == "float":
        of_32 = {8: "mxfp8", 4: "mxfp4-pack"}
        method = (of_32 if group == 32 else {8: "fp8", 4: "nvfp4"}).get(bits, method)
    if method == "modelopt":
        algorithm = str(weights.get("quant_algo") or config.get("quant_algo")).lower()
        method = next((x for x in ("nvfp4", "mxfp8", "fp8", "w4a") if x in algorithm), algorithm)
    if method in _METHODS and not (method == "awq" and bits):
        name = _METHODS[method]
        block = weights.get("weight_block_size") or weights.get("block_structure")
        entries = prod(map(_whole, block)) if isinstance(block, list | tuple) else 0
        return name, ENTRY_BYTES[name] + (Fraction(4, entries) if entries > 0 else 0)
    if bits in (4, 8) or (bits and method in _GROUPED):
        zero_point = 0 if weights.get("symmetric") else Fraction(bits, 8)
        group = 0 if weights.get("strategy") in ("channel", "tensor") else group or 128
        scales = Fraction(2 + zero_point) / group if group > 0 else Fraction(0)
        return f"int{bits}", Fraction(bits, 8) + scales
    return None


#: Fields of ``quantization_config`` with patterns of modules that are not quantised.
_EXCEPTIONS = (
    "ignore", "ignored_layers", "modules_to_not_convert", "modules_to_not_quantize",
    "exclude_modules", "exclude", "llm_int8_skip_modules", "skip_modules",
)  # fmt: skip
#: Roles of weights that are quantised; a head only if a pattern means it.
_QUANTISED = ("attention", "mlp", "expert", "shared expert", "head")
#: Names of one of the experts' matrices, which files keep apart and models of transformers do not.
_EXPERT_MATRICES = ("0.gate_proj", "0.up_proj", "0.down_proj", "gate_up_proj", "down_proj")
#: Starts of names, with which files of models of text and of images differ; and of Nemotron-H.
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "backbone.")


def stored_entries(
    fields: Mapping[str, Any], weights: Iterable[tuple[str, str, str, int]]
) -> dict[str, Counter[StoredFormat | None]]:
    """Return the entries of each role by the format that a file keeps them in; None is bfloat16.

    ``weights`` are the module of each weight, its class, role, and number of entries. Experts are
    taken to be alike. Empty if the file does not say a format that is known.
    """
    formats, config = file_formats(fields), quantization_of(fields)
    exceptions = [pattern for key in _EXCEPTIONS for pattern in _texts(config.get(key))]
    method = str(config.get("quant_method"))
    head = any(config.get(x) for x in ("config_groups", "quantized_layers"))
    head = head or config.get("lm_head") is True
    stored = defaultdict[str, Counter[StoredFormat | None]](Counter)
    for module, kind, role, entries in weights if formats else ():
        names = {kind, *_names_in_files(module, expert=role == "expert")}
        kept = role not in _QUANTISED or (role == "head" and (not head or "Embedding" in kind))
        kept = kept or any(_means(x, names, method) for x in exceptions)
        stored[role][None if kept else _format_of(formats, names, role)] += entries
    return dict(stored)


def _format_of(formats: Sequence[StoredFormat], names: set[str], role: str) -> StoredFormat | None:
    """Return the format of a module: patterns of its name go before those of its class."""
    for one in sorted(formats, key=lambda one: "Linear" in one.targets):
        if "Linear" in one.targets or any(_means(x, names, _GROUPS) for x in one.targets):
            is_kept = one.name == "bfloat16" or (one.name == "mxfp4" and role != "expert")
            return None if is_kept else one
    return None


def _names_in_files(module: str, *, expert: bool) -> Iterator[str]:
    """Yield the names that files may give to a module or, if it has experts, to their matrices."""
    start = next((x for x in (*_PREFIXES, "model.") if module.startswith(x)), "")
    inside = module.removeprefix(start)
    for name in {module, f"model.{inside}", inside, *(f"{x}{inside}" for x in _PREFIXES)}:
        yield name
        if expert and name.endswith("experts"):
            yield from (f"{name}.{matrix}" for matrix in _EXPERT_MATRICES)


def _means(pattern: str, names: Iterable[str], method: str) -> bool:
    """Return whether a pattern of ``quantization_config`` means one of these names of a module."""
    with suppress(re.error):
        if pattern.startswith("re:"):
            return any(re.match(pattern[3:], name) for name in names)
        if method == _GROUPS:
            return pattern in names
        if method != "modelopt":
            start = re.compile(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))")
            return any(start.match(name) or name.endswith(pattern) for name in names)
    return any(pattern in name or fnmatchcase(name, pattern) for name in names)


def _texts(value: Any) -> list[str]:
    """Return the texts of a list in a file; empty for anything else."""
    return [x for x in value if isinstance(x, str) and x] if isinstance(value, list | tuple) else []


def quantization_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table of a ``config.json`` on how its weights are quantised; empty without one."""
    places = fields, _table(fields.get("text_config"))
    names = "quantization_config", "compression_config"
    return _table(next((x[name] for x in places for name in names if x.get(name)), None))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    """Return a number of a file, also one in a text, as a whole number; 0 for anything else."""
    text = str(value).removesuffix(".0")
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0
