"""Every mechanism's costs derived from its code: how, how long, and whether they are the form.

    python reports/run.py derive/mechanisms                  # what is not there
    python reports/run.py derive/mechanisms reformer sparse  # these again; the other rows stay

A process of its own derives each mechanism with its default parameters, as a layer or its core
alone, with a causal mask or without; one run shows a backward pass and a training step, so that
these two are derived together. ``attnprof.cost`` of the mechanism then says what it costs at random
sizes inside the domain that the derivation states, and every quantity is compared.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rows import since, table

PACKAGES = ("torch", "sympy")
SCOPES, GROUPS = ("layer", "core"), (("forward",), ("backward", "train"), ("decode",))
#: Parameters without which a mechanism does not decode.
TO_DECODE = {"sparse": {"stride": 64}, "reformer": {"num_buckets": 16}}
#: Random shapes of each row, draws until that many are inside, and the largest sizes.
SHAPES, DRAWS, MOST = 12, 20_000, {"B": 16, "N": 6000, "h": 16, "d": 160}
#: Bytes by which a peak may part from the form: two numbers that autograd saves.
SMALL = 16
#: A row that takes longer is told.
SLOW = 30


@dataclass(frozen=True)
class Row:
    """What a derivation gave for a phase.

    At ``equal`` of ``compared`` shapes the costs are those of the form; ``wrong`` says what
    differed, ``peak`` by how much. ``seconds`` are processor seconds without imports, ``without``
    the quantities that have no formula, ``refused`` is why there is none.
    """

    mechanism: str
    scope: str
    phase: str
    causal: bool
    method: str = ""
    seconds: float = 0
    compared: int = 0
    equal: int = 0
    wrong: str = ""
    peak: str = ""
    without: str = ""
    refused: str = ""
    domain: str = ""
    flops: str = ""


def name_of(row: Row) -> str:
    """Return the case of a row; decoding is with that of no mask."""
    return f"{row.mechanism} {row.scope}{' causal' * row.causal}"


def cases() -> dict[str, tuple[str, str, bool]]:
    """Return every mechanism, scope and mask, by name."""
    from attnprof import registry

    by_label: dict[str, tuple[str, str, bool]] = {}
    for name in registry.names():
        can = registry.get(name).abilities
        for scope in SCOPES if can.attend else SCOPES[:1]:
            for causal in (False, True) if can.causal else (False,):
                by_label[f"{name} {scope}{' causal' * causal}"] = name, scope, causal
    return by_label


def rows(_: str, case: tuple[str, str, bool]) -> Iterator[Row]:
    """Yield every phase, and what the closed form says of it; decoding has no mask."""
    import sympy  # noqa: F401 - not part of the time

    from attnprof import registry
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import mechanism_target
    from attnprof.trace.solve.derive import derived

    name, scope, causal = case
    for phases in GROUPS:
        decodes = phases == ("decode",)
        if decodes and (causal or not registry.get(name).abilities.decode):
            continue
        spec = registry.get(name, **(TO_DECODE.get(name, {}) if decodes else {}))
        start = time.process_time()
        known: dict[str, Any] = {"mechanism": name, "scope": scope, "causal": causal}
        try:
            derivation = derived(mechanism_target(spec, scope, causal=causal), phases)
        except AttnprofError as error:
            for phase in phases:
                yield Row(**known, phase=phase, seconds=since(start), refused=str(error))
            continue
        seconds = since(start)
        for phase in phases:
            yield _row(
                {**known, "phase": phase, "seconds": seconds}, spec, derivation.phases[phase]
            )


def _row(known: dict[str, Any], spec: Any, forms: Any) -> Row:
    gone = [q for q, formula in forms.formulas.items() if formula.expression is None]
    compared = list(comparisons(spec, known["scope"], known["causal"], forms))
    wrong = [difference for difference, _ in compared if difference]
    peaks = sorted({by for _, by in compared if abs(by) > SMALL})
    return Row(
        **known, method=forms.method, compared=len(compared), equal=len(compared) - len(wrong),
        wrong="; ".join(wrong[:2]), without=", ".join(gone), domain="; ".join(forms.domain),
        peak=f"{peaks[0]:+} to {peaks[-1]:+}" if peaks else "",
        flops=str(forms.formulas["flops"].expression),
    )  # fmt: skip


def comparisons(spec: Any, scope: str, causal: bool, forms: Any) -> Iterator[tuple[str, int]]:
    """At random sizes of the domain: what is not the closed form, and by how much the peak."""
    from attnprof import Workload
    from attnprof.algebra.values import evaluate
    from attnprof.errors import AttnprofError
    from attnprof.trace.events import KINDS

    shapes = [dict(shape) for shape in forms.verified_at]
    chance = random.Random(f"{spec.name} {scope} {forms.phase} {causal}")  # noqa: S311 - no secret
    left = SHAPES
    for attempt in range(DRAWS):
        at = drawn(forms, chance, attempt)
        if not left or at in shapes or not forms.holds(at):
            continue
        shapes.append(at)
        w = Workload(at["N"], at["h"], at["d"], at["B"], causal=causal, phase=forms.phase)
        try:
            table = spec.cost(w, scope)
        except AttnprofError:
            continue  # the mechanism has no such size
        left -= 1
        ours = {name: getattr(table.total, name) for name in (*KINDS, "flops", "bytes_moved")}
        ours |= {"parameters": table.parameters, "peak_bytes": table.peak()}
        values = {
            quantity: evaluate(forms.formulas[quantity].expression, at)
            for quantity in ours if forms.formulas[quantity].expression is not None
        }  # fmt: skip
        by = values.pop("peak_bytes", ours["peak_bytes"]) - ours["peak_bytes"]
        off = [f"{q} {value}, not {ours[q]}" for q, value in values.items() if value != ours[q]]
        where = ", ".join(f"{name}={size}" for name, size in at.items())
        yield f"at {where}: {', '.join(off)}" if off else "", by


def drawn(forms: Any, chance: random.Random, attempt: int) -> dict[str, int]:
    """Any sizes; every second time in the class of those that were verified."""
    shape = {}
    for name, most in MOST.items():
        ways = (chance.randint(2, most), round(2 * (most / 2) ** chance.random()),
                2 ** chance.randint(1, int(math.log2(most))), chance.randint(2, 9))  # fmt: skip
        size = chance.choice(ways)
        verified = [shape[name] for shape in forms.verified_at]
        step = math.gcd(*(other - verified[0] for other in verified))
        if attempt % 2:
            least = min(verified)
            size = least + max(size - least, 0) // step * step if step else least
        shape[name] = size
    return shape


# -- the page -------------------------------------------------------------------------------


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    methods = [f"{sum(r.method == m for r in rows)} {m}" for m in dict.fromkeys(
        r.method for r in rows if r.method)]  # fmt: skip
    slowest = max(rows, key=lambda row: row.seconds)
    slow = [row for row in rows if row.seconds > SLOW]
    wrong, peaks = [row for row in rows if row.wrong], [row for row in rows if row.peak]
    row_names = {name_of(row) for row in rows}
    missing = [name for name in cases() if name not in row_names]
    yield "# Costs of every mechanism, derived from its code"
    yield (
        f"One thread. All sizes are free; parameters are the defaults "
        f"(to decode: {', '.join(f'{n} with {_given(sizes)}' for n, sizes in TO_DECODE.items())}). "
        "Each scope and mask has a process of its own. *s* are processor seconds without imports; "
        "a backward pass and a training step are derived together."
    )
    yield ""
    yield (
        "`symbolic` formulas come from one run with symbolic sizes; `mixed` ones from a few runs "
        "in which the sizes that the code makes numbers of are small numbers; `interpolated` ones "
        "are exact polynomials through the counts of many runs, in one class of lengths. *equal* "
        "counts the random shapes inside the domain at which all FLOPs by kind, the bytes moved "
        "and the parameters are those of `attnprof.cost`, which knows the mechanism by its closed "
        f"form; no shape is one at which the derivation was verified. Where a peak is more than "
        f"{SMALL} bytes off, *peak* says how many: what kernels take inside themselves is in the "
        "derived formula and not in the closed form."
    )
    yield ""
    compared, equal = (sum(getattr(r, name) for r in rows) for name in ("compared", "equal"))
    gone = [row for row in rows if row.refused]
    yield (
        f"{len(rows)} rows: {', '.join(methods)}, {len(gone)} without formulas. "
        f"{equal:,} of {compared:,} random shapes equal, {len(wrong)} rows not. "
        f"{len(rows) - len(peaks) - len(gone)} rows with the peak of the closed form. Slowest: "
        f"{_name(slowest)}, {slowest.seconds} s; {len(slow)} above {SLOW} s."
    )
    if missing:
        yield f"Not run: {', '.join(missing)}."
    yield ""
    yield from table(
        "mechanism | scope | phase | method | >s | >equal | peak | FLOPs | holds for",
        (
            (each.mechanism, each.scope, _phase(each), each.method or "none",
             f"{each.seconds:.1f}", f"{each.equal} of {each.compared}", each.peak,
             f"`{_short(each.flops)}`" if each.method else _short(each.refused),
             _short(each.domain))
            for each in rows
        ),
    )  # fmt: skip
    for each in wrong:
        yield f"\n{_name(each)}: {each.wrong}"
    without = [f"{_name(each)}: {each.without}" for each in rows if each.without]
    if without:
        yield f"\nWithout a formula of: {'; '.join(without)}."


def _given(values: dict[str, int]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in values.items())


def _phase(each: Row) -> str:
    return f"{each.phase}, causal" if each.causal else each.phase


def _name(each: Row) -> str:
    return f"{each.mechanism} {each.scope}, {_phase(each)}"


def _short(text: str) -> str:
    return text if len(text) < 220 else f"{text[:216]} …"
