"""Derived formulas at random shapes of their domains: does a run there ever contradict one?

Mechanisms of this project, layers of torch.nn, models of transformers (tiny configurations, random
weights), attention as people write it by hand, code that loops over tokens, chunks, layers or
experts, recurrences and chunked scans of papers, and small modules of many operations and branches
are derived, forward and in training. At random shapes inside the domain that each derivation
states, every formula is compared with a run of the code on fake tensors; where the shape is small,
FLOPs of products with torch's ``FlopCounterMode`` and the peak with the CPU allocator's account of
a run on real tensors, too.
In an environment with attnprof and transformers::

    python reports/run.py derive/shapes
    python reports/run.py derive/shapes --all --set SEED=3   # at other shapes
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from derive.cases import chunks, handwritten, loops, small
from derive.cases.handwritten import Embedded, Projected
from derive.transformers_models import OWN_RULES, SCALARS, build_model
from rows import grouped, since, table
from subjects import subject_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError
from attnprof.measure.memory import measure_peak
from attnprof.trace.report.derivation import Derivation, PhaseForms
from attnprof.trace.request.lookup import target_of
from attnprof.trace.request.target import Target
from attnprof.trace.solve.derive import derived

PACKAGES, PHASES = ("torch", "transformers"), ("forward", "train")
#: What draws the shapes.
SEED = 7
#: Shapes for each phase; draws until that many are inside; the longest.
SHAPES, DRAWS = 5, 4000
MOST = {"B": 12, "h": 12, "d": 96, "M": 300, "N": 1500, "C": 24, "n": 6, "L": 6}
#: What a run on real tensors may take: FLOPs, bytes.
REAL_FLOPS, REAL_BYTES = 10**9, 2**28
MECHANISMS = (
    "standard", "sdpa", "efficient", "optimised", "super", "linformer", "low-rank", "linear",
    "longformer", "taylor-direct", "taylor-efficient", "taylorshift", "he", "we",
)  # fmt: skip
MODELS = (
    "Llama", "Mistral", "Gemma", "Gemma2", "Gemma3Text", "Qwen2", "Qwen3", "GPT2", "Bert",
    "ModernBert", "Olmo2",
)  # fmt: skip
HEADED = ["d_model=h*d", "num_heads=h"]
TORCH: dict[str, tuple[Any, list[str], list[str]]] = {
    "nn.MultiheadAttention": (
        nn.MultiheadAttention, ["embed_dim=h*d", "num_heads=h", "batch_first=True"],
        ["query: B, N, h*d", "key: B, N, h*d", "value: B, N, h*d"],
    ),
    "nn.TransformerEncoderLayer": (
        nn.TransformerEncoderLayer,
        ["d_model=h*d", "nhead=h", "dim_feedforward=4*h*d", "batch_first=True"],
        ["src: B, N, h*d"],
    ),
    "nn.TransformerDecoderLayer": (
        nn.TransformerDecoderLayer,
        ["d_model=h*d", "nhead=h", "dim_feedforward=64", "batch_first=True"],
        ["tgt: B, N, h*d", "memory: B, M, h*d"],
    ),
}  # fmt: skip
#: Inputs of those written by hand that take more than ``x``.
INPUTS = {
    "RelativeShift": ["x: B, N, h*d", "distances: N, h*d"],
    "Masked": ["x: B, N, h*d", "mask: B, N bool"],
    "Cross": ["x: B, N, h*d", "memory: B, M, h*d"],
    "Embedded": ["ids: B, N int64"],
}


@dataclass(frozen=True)
class Row:
    """A phase of a module at a shape: what was compared there, and what was wrong.

    ``sizes`` is empty where the phase was refused; ``wrong`` then says why. ``compared`` are the
    quantities with a formula; ``withheld`` those without one; ``real`` what was held against a run
    on real tensors, of products and the peak.
    """

    kind: str
    module: str
    phase: str
    method: str
    domain: str
    sizes: str
    compared: int
    withheld: str
    real: str
    wrong: str
    derive_s: float


def name_of(pair: Row) -> str:
    """Return the case of a row."""
    return pair.module


def cases() -> dict[str, tuple[str, Callable[[], Target]]]:
    """Return a kind, and what makes the target, by name."""
    return {name: (kind, make) for kind, name, make in listed()}


def listed() -> Iterator[tuple[str, str, Callable[[], Target]]]:
    """Yield a kind, a name, and what makes the target."""
    for name in MECHANISMS:
        yield "mechanism", name, partial(target_of, name)
    for name, (kind, args, inputs) in TORCH.items():
        yield "torch", name, partial(target_of, kind, args, inputs, name=name)
    for name in MODELS:
        build = partial(build_model, name)
        yield "transformers", name, partial(_factory, build, name)
    written = (("loop", loops.CASES), ("chunks", chunks.CASES), ("small", small.CASES))
    for kind, group in written:
        for name, (thing, args, inputs) in group.items():
            yield kind, name, partial(target_of, thing, args, inputs, name=name)
    for name, kind in vars(handwritten).items():
        if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not Projected:
            args = ["d_model=d"] if kind is Embedded else HEADED
            inputs = INPUTS.get(name, ["x: B, N, h*d"])
            yield "by hand", name, partial(target_of, kind, args, inputs)


def _factory(build: Callable[[], Any], name: str) -> Target:
    return target_of(build, name=name, inputs=["input_ids: B, N int64"])


def rows(name: str, case: tuple[str, Callable[[], Target]]) -> Iterator[Row]:
    """Yield every phase at random shapes; one row where it is refused."""
    kind, target = case[0], case[1]()
    for phase in PHASES:
        start = time.process_time()
        try:
            derivation = derived(target, (phase,))
        except AttnprofError as error:
            yield Row(kind, name, phase, "", "", "", 0, "", "", f"refused: {error}", since(start))
            continue
        seconds, forms = since(start), derivation.phases[phase]
        gone = [q for q, formula in forms.formulas.items() if formula.expression is None]
        for sizes, counted in runs(derivation, forms, SEED):
            wrong = differences(forms, sizes, counted)
            real, differing = _really(target, forms, sizes, counted)
            yield Row(
                kind, name, phase, forms.method, "; ".join(forms.domain), _sizes_text(sizes),
                len(counted) - len(gone), ", ".join(gone), real, "; ".join([*wrong, *differing]),
                seconds,
            )  # fmt: skip


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def differences(
    forms: PhaseForms, sizes: Mapping[str, int], counted: Mapping[str, Any]
) -> list[str]:
    """Return what formulas say that is not what the run counts."""
    known = {q: f.expression for q, f in forms.formulas.items() if f.expression is not None}
    values = {quantity: evaluate(expression, sizes) for quantity, expression in known.items()}
    return [
        f"{quantity}: {value} by the formula, {counted[quantity]} in a run"
        for quantity, value in values.items() if value != counted[quantity]
    ]  # fmt: skip


# -- shapes ---------------------------------------------------------------------------------


def runs(
    derivation: Derivation, forms: PhaseForms, seed: int
) -> Iterator[tuple[dict[str, int], Mapping[str, Any]]]:
    """Yield random shapes of the domain at which the code runs, and what it counts there."""
    chance = random.Random(f"{derivation.name} {forms.phase} {seed}")  # noqa: S311 - no secret
    shapes, left = [dict(shape) for shape in forms.verified_at], SHAPES
    for attempt in range(DRAWS):
        shape = _drawn(derivation.symbols, forms, chance, attempt)
        if not left or shape in shapes or not forms.holds(shape):
            continue
        shapes.append(shape)
        with suppress(AttnprofError):  # the code refuses it, or takes too long
            yield shape, forms.counted(shape)
            left -= 1


def _drawn(
    names: Iterable[str], forms: PhaseForms, chance: random.Random, attempt: int
) -> dict[str, int]:
    """All sizes alike, tiny, odd, powers of two, large, or in the class of those verified."""
    kinds: list[Callable[[int], int]] = [
        lambda _: chance.choice((2, 3)),
        lambda _: 2 * chance.randint(1, 5) + 1,
        lambda most: 2 ** chance.randint(1, int(math.log2(most))),
        lambda most: chance.randint(2, most),
        lambda most: round(2 * (most / 2) ** chance.random()),
    ]
    alike = chance.randint(2, 12)
    drawn = {name: chance.choice(kinds)(MOST.get(name, 96)) for name in names}
    shape = dict.fromkeys(drawn, alike) if attempt % 7 == 0 else drawn
    for name in shape if attempt % 2 else ():
        shape[name] = _in_class([s[name] for s in forms.verified_at], shape[name])
    return shape


def _in_class(verified: list[int], size: int) -> int:
    """The size moved to where those that were verified lie, as far apart as they are."""
    step = math.gcd(*(other - verified[0] for other in verified))
    if not step:
        return verified[0]
    first = verified[0] % step
    return max(first + (size - first) // step * step, min(verified))


# -- on real tensors ------------------------------------------------------------------------


def _really(
    target: Target, forms: PhaseForms, sizes: Mapping[str, int], counted: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """What was held against a run on real tensors, and where that gave something else."""
    if any("evenly" in text for text in forms.domain):
        return "", []  # random inputs are not routed so
    if counted["flops"] > REAL_FLOPS or counted["peak_bytes"] > REAL_BYTES:
        return "", []
    torch.manual_seed(0)
    module = target.make(sizes)
    positional, named = target.call_inputs(sizes)
    subject = subject_of(module, positional, named, forms.phase)
    peak = measure_peak(subject, "cpu", torch).bytes - counted["peak_bytes"]
    subject.reset()
    with FlopCounterMode(display=False, custom_mapping=RULES) as counter, _Numbers() as numbers:
        subject.call()
    products, wrong = counter.get_total_flops(), []
    if products != counted["matmul_flops"]:
        wrong.append(f"products: {counted['matmul_flops']} here, {products} by torch's counter")
    slack = max(SCALARS, 8 * numbers.count)
    if not (-slack <= peak <= slack or (forms.bound("peak_bytes") != "exact" and peak > 0)):
        wrong.append(f"the peak on real tensors is {peak:+} bytes off")
    return "products, peak", wrong


class _Numbers(TorchDispatchMode):
    """Counts operations on tensors and Python numbers: of each autograd may keep the number."""

    count = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(type(x) in (int, float) for x in args[:2])
        return func(*args, **kwargs or {})


def _vector(matrix: Any, *_rest: Any, **_named: Any) -> int:
    return 2 * math.prod(matrix)


def _attention(x: Any, _key: Any, _value: Any, width: int, *_rest: Any, **_named: Any) -> int:
    b, n, _ = x
    return 8 * b * n * width * width + 4 * b * n * n * width


def _layer(x: Any, width: int, _heads: int, *rest: Any, **_named: Any) -> int:
    b, n, _ = x
    wide, _ = rest[11]
    return _attention(x, x, x, width) + 4 * b * n * width * wide


def _distances(x: Any, y: Any, *_rest: Any, **_named: Any) -> int:
    return 2 * math.prod(x[:-1]) * y[-2] * (x[-1] + 2)


#: Torch's counter leaves out products with vectors and of distances, and layers in one operation.
RULES = {
    **OWN_RULES,
    torch.ops.aten._transformer_encoder_layer_fwd: _layer,  # noqa: SLF001
    torch.ops.aten._native_multi_head_attention: _attention,  # noqa: SLF001
    torch.ops.aten.mv: _vector,
    torch.ops.aten.dot: _vector,
    torch.ops.aten._euclidean_dist: _distances,  # noqa: SLF001
}


# -- the table ------------------------------------------------------------------------------


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    drawn = [pair for pair in rows if pair.sizes]
    wrong = [pair for pair in drawn if pair.wrong]
    phases = grouped(rows, lambda pair: (pair.module, pair.phase))
    real = sum(bool(pair.real) for pair in drawn)
    values = sum(pair.compared for pair in drawn)
    refused = [pair for pair in rows if not pair.sizes]
    yield "# Derived formulas at random shapes of their domains"
    yield (
        f"Each phase is derived with all sizes free and compared at {SHAPES} random shapes of the "
        "domain that the derivation states, none of those at which it was verified: tiny, odd, all "
        "sizes alike, powers of two, large. A run of the code on fake tensors counts every "
        "quantity; at small shapes torch's `FlopCounterMode` counts products and the CPU's "
        f"allocator the peak of a run on real tensors (within {SCALARS} bytes, or 8 for each "
        "operation with a Python number, which torch wraps as a tensor)."
    )
    yield ""
    yield (
        f"**{len(drawn)} pairs of module and shape, {len(wrong)} wrong**, in {len(phases)} phases "
        f"({len(refused)} refused): {values} values of formulas against runs on fake tensors; "
        f"at {real} shapes products and peaks on real ones, too."
    )
    yield ""
    for pair in wrong:
        yield f"- wrong: {pair.module}, {pair.phase}, {pair.sizes}: {pair.wrong}"
    for pair in refused:
        yield f"- refused: {pair.module}, {pair.phase}: {pair.wrong.removeprefix('refused: ')}"
    yield ""
    yield from table(
        " | module | phase | method | holds for | >shapes | >on real tensors | withheld | >s",
        (
            (pairs[0].kind, module, phase, pairs[0].method, pairs[0].domain, len(pairs),
             sum(bool(pair.real) for pair in pairs), pairs[0].withheld or "none",
             f"{pairs[0].derive_s:g}")
            for (module, phase), pairs in phases.items() if pairs[0].sizes
        ),
    )  # fmt: skip
