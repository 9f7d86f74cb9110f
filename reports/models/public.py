"""Every public number of a model that we know of, made again: published, ours, and the verdict.

    python reports/run.py models/public --all      # all of them: a minute
    python reports/run.py models/public kv_hybrid  # those of a kind

``published.csv`` has the numbers with their sources: caches in engines' logs, pages of hybrids,
files of weights, parameters, FLOPs, training memory, decoded tokens. Configurations there name no
type; the type of transformers that has such layers is taken.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from models import executed, sizes
from models.cases import Case, Replay
from rows import table

PACKAGES = ("torch", "transformers")
MATCH, ERRATUM, NOT_COMPUTABLE = "match", "erratum", "not computable"
#: What is made of a row: by its quantity, or by how its name begins if that is a formula.
REPLAYS: Mapping[str, Callable[[Case], Replay]] = {
    "kv_memory": sizes.kv_memory, "kv_tokens_from_memory": sizes.tokens_from_memory,
    "kv_blocks_from_memory": sizes.tokens_from_memory, "kv_bytes_per_token": sizes.bytes_per_token,
    "k_memory": sizes.of_keys, "ssm_state_memory": sizes.of_states,
    "conv_state_memory": sizes.of_states, "attention_block_aligned": sizes.aligned,
    "mamba_page_padding_percent": sizes.aligned, "tokens_from_blocks": sizes.pool,
    "concurrency": sizes.pool, "swa_cells": sizes.window_cells,
    "safetensors_total_size": sizes.index_bytes, "gguf_size": sizes.gguf,
    "gguf_bits_per_weight": sizes.gguf,
    "params_total": executed.parameters, "params_active": executed.parameters,
    "params_active_no_embedding": executed.parameters,
    "flops_train_batch": executed.convention, "flops_per_token_train": executed.convention,
    "published_only": executed.peak,
    "kv-align": sizes.aligned, "kv-vllm-qwen38": sizes.paged_need,
    "kv-llamacpp-qwen": sizes.of_states, "kv-llamacpp-gemma4": sizes.shared_layers,
    "kv-sglang-nvfp4": sizes.one_side, "gguf": sizes.gguf, "w-vllm-gptoss": sizes.marlin,
    "w-vllm-awq": sizes.awq, "kv-vllm-40691": sizes.hybrid_pool,
    "act-mtnlg-overhead": executed.recomputation, "act-mtnlg": executed.attention_share,
    "act-megatron-65b-shard": executed.shard, "act-megatron-65b-weights": executed.shard,
    "act-megatron-65b-total": executed.pipeline_activations,
    "act-megatron": executed.layer_activations, "act-bridge": executed.bridge,
    "params-gemma3": executed.tied_twice, "params-bert": executed.built_parameters,
    "params-flan": executed.built_parameters, "params": executed.parameters,
    "flops-titan": executed.all_experts, "flops-prime-qwen3-06b-params": executed.matrices,
    "flops-prime": executed.megatron, "flops-gpt3": executed.six_n, "flops-llama3": executed.six_n,
    "flops-bridge": executed.megatron,
    "flops-ds-qwen72b": executed.qwen72b, "flops-ds": executed.megatron,
    "flops-vit": executed.multiply_adds, "flops-chinchilla": executed.chinchilla,
    "flops-selrec": executed.utilisation, "dec-ds": executed.ratio,
    "dec-s3-intensity": executed.intensity, "-kv-": executed.decoded_cache,
    "-attn-": executed.decoded_scores, "-linear": executed.projections,
    "-ffn": executed.feed_forward,
}  # fmt: skip
#: Why a number is wrong, or what beside a right number is, by how names begin.
ERRATA = {
    "flops-ds-qwen72b": "no convention gives so few",
    "dec-ds-ratio-405b": "the quotient of the table's own bytes is another",
    "dec-s3": "sums over latent rows counted as wide as their keys, 576 and not 512",
    "flops-chinchilla": "appendix F counts the embedding and the logits, table A4 does not",
    "act-mtnlg-overhead": "recomputed attention is a third of its FLOPs in training, not all",
    "flops-selrec-hfu": "recomputed attention is a third of its FLOPs in training, not all",
    "flops-verl-mistral": "right; a comment beside it counts attention twice",
    "flops-verl-gemma3": "right; a comment beside it counts attention twice",
    "flops-verl-qwen35": "right, of Qwen3.5-9B; it is named 27B",
    "flops-titan-qwen3-30b-hf": "all 128 experts and the embedding are counted as multiplied",
    "params-gemma3": "the table is counted a second time as the head that it is tied to",
    "kv-vllm-40691-tokens": "pages were divided by the groups that share them; later ones do not",
    "kv-align-qwen38-27b-spec7-bf16": "right; a page beside it is 1,777,664 B, not 1,777,600",
    "kv-align-qwen36-35b-pad": "right; the tail has 8,192 channels of two bytes, not 4,096 of four",
}
#: What is not ours to make, and why, by how names begin.
NOT_OURS = {
    "act-titan": (
        "a measured peak: which products the trainer recomputes, and what its allocator keeps, "
        "follow from no configuration; ours is what a step holds with attention alone recomputed"
    ),
    "flops-bridge-dsa": (
        "transformers' code runs no rotary positions that are one entry wide; the formula that is "
        "printed with the number gives it"
    ),
}
KINDS = {
    "kv_log": "Caches in engines' logs",
    "kv_hybrid": "Caches and pages of hybrids",
    "weights": "Files and loads of weights",
    "params": "Parameters",
    "flops": "FLOPs and utilisation",
    "activation": "Training memory",
    "decode": "Decoded tokens",
}


@dataclass(frozen=True)
class Row:
    """A public number beside ours; ``printed`` is what the source's own rule gives."""

    kind: str
    id: str
    published: str
    ours: str
    verdict: str
    printed: str = ""
    why: str = ""


def published() -> dict[str, dict[str, str]]:
    """Return the published numbers by name."""
    text = Path(__file__).with_name("published.csv").read_text(encoding="utf-8")
    return {row["id"]: row for row in csv.DictReader(text.splitlines())}


def cases() -> dict[str, list[dict[str, str]]]:
    """Return the numbers by kind."""
    return {kind: [x for x in published().values() if x["kind"] == kind] for kind in KINDS}


def rows(_: str, case: list[dict[str, str]]) -> Iterator[Row]:
    """Yield the numbers of a kind beside ours."""
    yield from map(beside_ours, case)


def beside_ours(row: Mapping[str, str]) -> Row:
    """Return a number beside ours, with the verdict."""
    name, kind = row["id"], row["kind"]
    not_ours = next((text for start, text in NOT_OURS.items() if name.startswith(start)), "")
    if not_ours:
        ours = text_of(replayed(row).ours, row["value"]) if name.startswith("act") else ""
        return Row(kind, name, row["value"], ours, NOT_COMPUTABLE, why=not_ours)
    replay = replayed(row)
    verdict = verdict_of(row, replay)
    why = next((text for start, text in ERRATA.items() if name.startswith(start)), "")
    if verdict == MATCH and not why.startswith("right"):
        why = replay.added
    elif verdict == ERRATUM:
        why = "; ".join(filter(None, (why, replay.wrong)))
    printed = "" if replay.printed is None else text_of(replay.printed, row["value"])
    return Row(kind, name, row["value"], text_of(replay.ours, row["value"]), verdict, printed, why)


def replayed(row: Mapping[str, str]) -> Replay:
    """Return our number for a row, made without its value."""
    case = Case(row["id"], row["config"], row["quantity"], json.loads(row["setting"]), row["unit"])
    by_name = (x for x in REPLAYS if case.id.startswith(x) or (x[0] == "-" and x in case.id))
    replay = REPLAYS.get(case.quantity) or REPLAYS[next(by_name)]
    return replay(case)


def verdict_of(row: Mapping[str, str], replay: Replay) -> str:
    """Return whether a number holds; ``no match`` where nothing explains it."""
    if replay.wrong or (replay.printed is not None and agrees(row, replay.printed)):
        return ERRATUM
    return MATCH if agrees(row, replay.ours, replay.within) else "no match"


def agrees(row: Mapping[str, str], ours: float, within: float = 0) -> bool:
    """Return whether a number is the published one, to its own statement or its last digit."""
    text, checked = row["value"], row["checked"]
    if percent := re.match(r"within ([\d.]+) %", checked):
        within = max(within, float(text) * float(percent[1]) / 100)
    elif checked.startswith("exact to the digits"):
        within = max(within, half_a_digit(text))
    return abs(float(ours) - float(text)) <= within * (1 + 1e-9)


def half_a_digit(text: str) -> float:
    """Return half of the last digit of a number as it is printed."""
    digits, _, exponent = text.partition("e")
    return float(0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])))


def text_of(value: float, like: str) -> str:
    """Return a number with the digits that another is printed with, and one more."""
    digits, _, exponent = like.partition("e")
    places = len(digits.partition(".")[2])
    if exponent:
        return f"{float(value):.{places + 1}e}".replace("e+", "e")
    return f"{float(value):.{places + 1}f}" if places else f"{round(value)}"


# -- the page -------------------------------------------------------------------------------


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    sources = published()
    verdicts = [row.verdict for row in rows]
    yield "# Public numbers of models, made again"
    yield (
        f"{len(rows)} numbers: {verdicts.count(MATCH)} match, {verdicts.count(ERRATUM)} are "
        f"errata, {verdicts.count(NOT_COMPUTABLE)} cannot be computed. A number matches if ours is "
        "equal to its last printed digit, or to what is said beside it. Ours are made by the parts "
        "of `attnprof fit` and `attnprof model --mfu` without the published value; those of a kind "
        "again: `python reports/run.py models/public kv_hybrid`."
    )
    yield ""
    yield "## Errata"
    yield ""
    wrong = [row for row in rows if row.verdict == ERRATUM or row.why.startswith("right")]
    yield from table(
        "number | of | >published | >right | by the source's rule | why",
        ((row.id, sources[row.id]["model"], _number(row.published), _number(row.ours),
          _number(row.printed), row.why) for row in wrong),
    )  # fmt: skip
    for kind, title in KINDS.items():
        yield ""
        yield f"## {title}"
        yield ""
        here = [row for row in rows if row.kind == kind]
        yield from table(
            "number | of | >published | >ours | unit | verdict | source",
            (_line(row, sources[row.id]) for row in here),
        )
        for why in dict.fromkeys(x.why for x in here if x.verdict == NOT_COMPUTABLE):
            yield f"\nNot computable: {why}."


def _line(row: Row, source: Mapping[str, str]) -> tuple[str, ...]:
    explained = row.verdict == MATCH and not row.why.startswith("right")
    percent = re.match(r"within [\d.]+ %", source["checked"])
    said = [percent[0] if percent else "", row.why if explained else ""]
    more = "".join(f", {text}" for text in said if text and row.verdict == MATCH)
    fitted = re.search(r"fitted: ([^;]+)", source["checked"])
    chosen = f"; not stated there: {fitted[1]}" if fitted else ""
    return (
        row.id, source["model"], _number(row.published), _number(row.ours), source["unit"],
        f"{row.verdict}{more}", f"{source['source']}{chosen}",
    )  # fmt: skip


def _number(text: str) -> str:
    """Return a number with a comma after each three digits before the point."""
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.isdigit() else text or "–"
