"""What is derived from every mechanism's code: its closed form, the allocator, torch's counter."""

import random
from dataclasses import replace

import pytest
import sympy
import torch

from attnprof import Workload, registry
from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.gate.exact import chosen
from attnprof.trace.events import KINDS, Trace, peak, totals, uncounted
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.request.target import DEFAULT, hints_for
from attnprof.trace.run.runs import record
from attnprof.trace.solve.symbolic import PinnedError, run_symbolically
from attnprof.trace.solve.verification import NoFormulaError
from tests.mechanisms.cases import WORKSPACE, built, causals, inputs, names, params
from tests.oracles.memory import held
from tests.trace.checks import torchs_products

SHAPE = (2, 40, 2, 8)
SIZES = dict(zip("BNhd", SHAPE, strict=True))
#: a short and a longer sequence, between which code that depends on the length does something else
SHORT, LONGER = {"B": 2, "N": 20, "h": 2, "d": 4}, {"B": 3, "N": 260, "h": 4, "d": 8}
#: implementations that tests/mechanisms does not count
VARIANTS = [
    ("longformer", {"impl": "dense-mask", "window": 2, "global_tokens": 1}),
    ("sparse", {"pattern": "fixed", "stride": 3}),
]
#: bytes between a peak and its closed form: two numbers that autograd saves, as the 8.0 of x / 8.0
SMALL = 2 * 8
#: numbers that torch wraps on the way; row sums of a thread that the profiler does not see
SCALARS, ROW_SUMS = 64, 4 * 32 * torch.get_num_threads()


def closed_form(spec, scope, phase, sizes, *, causal):
    """A cost table in the quantities of a derivation."""
    work = Workload(sizes["N"], sizes["h"], sizes["d"], sizes["B"], causal=causal, phase=phase)
    table = spec.cost(work, scope)
    counts = {kind: getattr(table.total, kind) for kind in (*KINDS, "flops", "bytes_moved")}
    return {**counts, "peak_bytes": table.peak(), "parameters": table.parameters}


def held_by_tensors(trace, phase):
    """The peak without what kernels take inside themselves, which closed forms leave out."""
    calls = [replace(call, workspace=0) for call in trace.calls]
    return peak(Trace(calls, trace.parameters), phase)


@pytest.mark.parametrize(
    ("name", "variant"), [*((name, {}) for name in registry.names()), *VARIANTS]
)
def test_a_layers_run_is_its_closed_form_and_its_peak_the_allocators(name, variant):
    spec = registry.get(name, **{**params(name), **variant})
    for causal in causals(name):
        layer, x = built(name, SHAPE, **variant), inputs(SHAPE).requires_grad_()
        for phases in (("forward",), ("backward", "train")):
            training, phase = "train" in phases, phases[-1]
            trace = record(mechanism_target(spec, causal=causal), SIZES, training=training)
            for part in phases:
                assert not uncounted(trace, part)
                counts = totals(trace, part)
                form = closed_form(spec, "layer", part, SIZES, causal=causal)
                most = held_by_tensors if name in WORKSPACE else peak
                more = form.pop("peak_bytes") - most(trace, part)
                assert abs(more) <= SMALL, (causal, part)
                assert {**counts, **form} == counts, (causal, part)
            slack = SCALARS + ROW_SUMS * (name == "sdpa" and training)
            seen = held(layer, x, phase, causal=causal)
            assert peak(trace, phase) == pytest.approx(seen, abs=slack, rel=0), (causal, phase)
            fused = [c.counts["matmul_flops"] for c in trace.part(phase) if "_for_cpu" in c.op]
            products = torchs_products(layer, x, causal=causal, training=training)
            assert products + sum(fused) == totals(trace, phase)["matmul_flops"], (causal, phase)
            assert bool(fused) == (name in WORKSPACE)  # which torch counts as nothing


def kinds_of_layers():
    """One mechanism of each kind of layer: around a core, the same text maps, splits and merges."""
    kinds = {}
    for name in registry.names():
        spec = registry.get(name)
        around = type(spec).mixed, spec.projections, spec.shares_queries, spec.flat
        kinds.setdefault(around if spec.abilities.attend else name, name)
    return list(kinds.values())


def telling_runs(spec, scope):
    """Mask, whether it decodes, and phases: a training step masked where it can, a decoding step.

    Around a core, a layer does the same whatever the mask, and decodes what its core decodes. A
    core's training step has its forward pass. Reformer's symbolic runs are long: its core's
    training step shows most.
    """
    around = scope == "layer" and spec.abilities.attend
    training = True in causals(spec.name) and not around, False, ("backward", "train")
    if spec.name == "reformer":
        return [training] if scope == "core" else []
    forward = [(False, False, ("forward",))] if scope == "layer" else []
    decode = [(False, True, ("decode",))] if spec.abilities.decode and not around else []
    return [*forward, training, *decode]


@pytest.mark.parametrize(
    ("name", "scope"),
    [(n, "layer") for n in kinds_of_layers()] + [(n, "core") for n in names(attend=True)],
)
def test_formulas_are_the_closed_forms_and_code_that_branches_on_a_size_has_none(name, scope):
    spec, hints = registry.get(name), hints_for(DEFAULT, {})
    for causal, decode, phases in telling_runs(spec, scope):
        target = mechanism_target(spec, scope, causal=causal)
        target = target.step if decode else target
        try:
            shown = run_symbolically(target, hints, ("forward",) if decode else phases)
        except PinnedError:
            how = {"training": False, "on_meta": True}
            short, longer = (record(target, sizes, **how) for sizes in (SHORT, LONGER))
            assert len(short.calls) != len(longer.calls), phases
            continue
        except (NoFormulaError, RequestError) as refusal:
            if "while it decodes" not in str(refusal):  # a default depends on the length
                raise
            continue
        for phase in phases:
            derived = shown.forms["forward" if decode else phase]
            derived = {**derived, "peak_bytes": held_by_tensors(shown.trace, phase)}
            symbols = {size: symbol(size) for size in DEFAULT}
            compare(shown, derived, closed_form(spec, scope, phase, symbols, causal=causal), hints)


def compare(shown, derived, closed, hints):
    """Polynomials are the same but for peaks and where loops are written in several ways.

    These have the same values wherever they hold, peaks but for a few numbers.
    """
    chance = random.Random(7)
    shapes = [{"B": 3, "N": n, "h": 6, "d": d} for n in (300, 421, 1021, 4097) for d in (16, 32)]
    shapes += [{name: round(2 ** chance.uniform(1, 16)) for name in hints} for _ in range(40)]
    inside = list(filter(shown.holds, shapes))
    assert inside
    for quantity, form in closed.items():
        if quantity != "peak_bytes" and not (shown.trace.has_loops or shown.most):
            ours, theirs = (chosen(sympy.sympify(x), hints) for x in (form, derived[quantity]))
            assert sympy.expand(ours - theirs) == 0, quantity
            continue
        for shape in inside:
            more = evaluate(derived[quantity], shape) - evaluate(form, shape)
            assert abs(more) <= (SMALL if quantity == "peak_bytes" else 0), (quantity, shape)
