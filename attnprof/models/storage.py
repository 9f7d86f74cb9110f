"""Bytes of an entry in the formats in which engines keep weights and caches.

Block formats keep scales beside the numbers: GGUF's by their structs (ggml-common.h), MXFP4 by the
OCP microscaling specification, NVFP4 with one scale in eight bits for 16 entries, AWQ and GPTQ with
a half-precision scale and a zero point of four bits for each group.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
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
}  # fmt: skip
#: Formats of weights, and of caches.
WEIGHTS = tuple(name for name in ENTRY_BYTES if name != "fp8_ds_mla")
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
#: Weights that GGUF's mixtures keep finer, by their names there: the roles that they are of, and
#: their names in models of transformers.
FINER = {
    "attn_v": (("attention",), r"(v_proj|\.value)\.weight"),
    "attn_output": (("attention",), r"attn\.(o_proj|out_proj|c_proj)\.weight"),
    "ffn_down": (("mlp", "expert", "shared expert"), r"down_proj|\.w2\b|fc2|mlp\.c_proj|_4h_to_h"),
}
#: Methods of ``quantization_config`` that name a format by themselves.
_METHODS = {"mxfp4": "mxfp4", "fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "int4", "nvfp4": "nvfp4"}


def format_named(name: str, flag: str, possible: tuple[str, ...]) -> str:
    """Return a format by its name or another one of it.

    Raises :class:`RequestError` with the ``possible`` ones.
    """
    known = name.strip().lower()
    known = _ALIASES.get(known, known)
    if known not in possible:
        raise RequestError(f"{flag} {name}: unknown format; {closest(known, list(possible))}")
    return known


def finer_layers(layers: int) -> int:
    """Return how many of ``layers`` have finer tensors: the first and last eighth, each third."""
    first, last = layers // 8, 7 * layers // 8
    return sum(i < first or i >= last or (i - first) % 3 == 2 for i in range(layers))


#: Of GGUF's mixtures the tensors that have a finer format than the others, that format, and in how
#: many of so many layers (llama.cpp, src/llama-quant.cpp).
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


def format_of_file(fields: Mapping[str, Any]) -> tuple[str, Fraction] | None:
    """Return the format that ``quantization_config`` names, and its bytes an entry; else None."""
    config = fields.get("quantization_config") or fields.get("compression_config")
    if not isinstance(config, Mapping):
        return None
    method = str(config.get("quant_method", ""))
    if config.get("load_in_4bit"):
        return "nf4", ENTRY_BYTES["nf4"]
    if config.get("load_in_8bit"):
        return "int8", ENTRY_BYTES["int8"]
    bits, group = config.get("bits"), config.get("group_size")
    for one in (config.get("config_groups") or {}).values():
        weights = one.get("weights") or {}
        bits, group = weights.get("num_bits"), weights.get("group_size")
        if weights.get("type") == "float":
            method = {8: "fp8", 4: "nvfp4"}.get(int(bits or 0), method)
    if method in _METHODS and not (method == "awq" and bits):
        name = _METHODS[method]
        block = config.get("weight_block_size")
        scales = Fraction(4, block[0] * block[1]) if isinstance(block, list) and block else 0
        return name, ENTRY_BYTES[name] + scales
    if bits in (4, 8) or method in ("awq", "gptq"):
        bits, group = int(bits or 4), int(group or 128)
        scales = Fraction(2 + Fraction(bits, 8)) / group if group > 0 else Fraction(0)
        return f"int{bits}", Fraction(bits, 8) + scales
    return None
