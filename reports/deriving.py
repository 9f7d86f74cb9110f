"""Every mechanism's costs derived from its code: how, how long, and whether they are the form.

    python reports/deriving.py                  # everything
    python reports/deriving.py reformer sparse  # these again; the other rows stay

A process of its own derives each mechanism with its default parameters, as a layer or its core
alone, with a causal mask or without; one run shows a backward pass and a training step, so that
these two are derived together. ``attnprof.cost`` of the mechanism then says what it costs at random
sizes inside the domain that the derivation states, and every quantity is compared. Written are
``deriving.md`` and ``deriving.csv``.
"""

from __future__ import annotations

import math
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from row_files import earlier, read, save, write

HERE = Path(__file__).parent
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

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What was derived."""
        return self.mechanism, self.scope, self.phase, str(self.causal)


def cases(name: str) -> Iterator[tuple[str, str, str]]:
    """Every scope and mask that a mechanism has."""
    from attnprof import registry

    can = registry.get(name).abilities
    for scope in SCOPES if can.attend else SCOPES[:1]:
        for causal in (False, True) if can.causal else (False,):
            yield name, scope, str(causal)


def rows(name: str, scope: str, mask: str) -> Iterator[Row]:
    """Every phase, and what the closed form says of it; decoding has no mask."""
    import sympy  # noqa: F401 - not part of the time
    import torch

    from attnprof import registry
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import mechanism_target
    from attnprof.trace.solve.derive import derived

    torch.set_num_threads(1)
    causal = mask == "True"
    for phases in GROUPS:
        decodes = phases == ("decode",)
        if decodes and (causal or not registry.get(name).abilities.decode):
            continue
        spec = registry.get(name, **(TO_DECODE.get(name, {}) if decodes else {}))
        start = time.process_time()
        known: dict[str, Any] = {"mechanism": name, "scope": scope, "causal": causal}
        try:
            found = derived(mechanism_target(spec, scope, causal=causal), phases)
        except AttnprofError as error:
            for phase in phases:
                yield Row(**known, phase=phase, seconds=_since(start), refused=str(error))
            continue
        seconds = _since(start)
        for phase in phases:
            yield _row({**known, "phase": phase, "seconds": seconds}, spec, found.phases[phase])


def _row(known: dict[str, Any], spec: Any, forms: Any) -> Row:
    gone = [q for q, formula in forms.formulas.items() if formula.expression is None]
    compared = list(comparisons(spec, known["scope"], known["causal"], forms))
    wrong = [told for told, _ in compared if told]
    peaks = sorted({by for _, by in compared if abs(by) > SMALL})
    return Row(
        **known, method=forms.method, compared=len(compared), equal=len(compared) - len(wrong),
        wrong="; ".join(wrong[:2]), without=", ".join(gone), domain="; ".join(forms.domain),
        peak=f"{peaks[0]:+} to {peaks[-1]:+}" if peaks else "",
        flops=str(forms.formulas["flops"].expression),
    )  # fmt: skip


def _since(start: float) -> float:
    return round(time.process_time() - start, 1)


def comparisons(spec: Any, scope: str, causal: bool, forms: Any) -> Iterator[tuple[str, int]]:
    """At random sizes of the domain: what is not the closed form, and by how much the peak."""
    from attnprof import Workload
    from attnprof.errors import AttnprofError
    from attnprof.trace.events import KINDS
    from attnprof.trace.sizes import evaluate

    seen = [dict(shape) for shape in forms.verified_at]
    chance = random.Random(f"{spec.name} {scope} {forms.phase} {causal}")  # noqa: S311 - no secret
    left = SHAPES
    for attempt in range(DRAWS):
        at = drawn(forms, chance, attempt)
        if not left or at in seen or not forms.holds(at):
            continue
        seen.append(at)
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
    """As Markdown."""
    import sympy
    import torch

    from attnprof import registry

    methods = [f"{sum(r.method == m for r in rows)} {m}" for m in dict.fromkeys(
        r.method for r in rows if r.method)]  # fmt: skip
    slowest = max(rows, key=lambda row: row.seconds)
    slow = [row for row in rows if row.seconds > SLOW]
    wrong, peaks = [row for row in rows if row.wrong], [row for row in rows if row.peak]
    missing = [n for n in registry.names() if n not in {row.mechanism for row in rows}]
    yield "# Costs of every mechanism, derived from its code"
    yield ""
    yield (
        f"Written by `OMP_NUM_THREADS=1 python reports/deriving.py`: Python "
        f"{platform.python_version()}, torch {torch.__version__}, sympy {sympy.__version__}, "
        f"{platform.machine()}, one thread. All sizes are free; parameters are the defaults "
        f"(to decode: {', '.join(f'{n} with {_given(given)}' for n, given in TO_DECODE.items())}). "
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
    yield "| mechanism | scope | phase | method | s | equal | peak | FLOPs | holds for |"
    yield "|---|---|---|---|--:|--:|---|---|---|"
    for each in rows:
        said = f"`{_short(each.flops)}`" if each.method else _short(each.refused)
        yield (
            f"| {each.mechanism} | {each.scope} | {_phase(each)} | {each.method or 'none'} "
            f"| {each.seconds:.1f} | {each.equal} of {each.compared} | {each.peak} "
            f"| {said} | {_short(each.domain)} |"
        )
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


def main(wanted: list[str]) -> None:
    """Derive all, or those named, and write the page after each."""
    from attnprof import registry

    table = HERE / "deriving.csv"
    found = dict[tuple[str, ...], Row]()
    if wanted:
        found = {row.key: row for row in earlier(table, Row)}
    for name in wanted or registry.names():
        for case in cases(name):
            child = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, __file__, "--one", *case],
                capture_output=True, text=True, check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            if child.returncode:
                sys.stderr.write(child.stderr)
                raise SystemExit(f"{' '.join(case)} failed")
            for each in read(child.stdout.splitlines(), Row):
                told = f"{_name(each)}: {each.method or each.refused}, {each.seconds} s"
                off = f"{each.equal} of {each.compared} {each.wrong} {each.without} {each.peak}"
                sys.stderr.write(f"{told}, {off}\n")
                found[each.key] = each
            _save(list(found.values()))


def _save(rows: list[Row]) -> None:
    from attnprof import registry

    places = registry.names()
    known = sorted(rows, key=lambda row: places.index(row.mechanism))
    save(HERE / "deriving.csv", Row, known)
    (HERE / "deriving.md").write_text("\n".join(page(known)) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        write(sys.stdout, Row, list(rows(*sys.argv[2:])))
    else:
        main(sys.argv[1:])
