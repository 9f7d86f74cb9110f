"""What is derived from every mechanism's code against its closed form and torch's counter."""

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof import Workload, registry
from attnprof.algebra.expressions import symbol
from attnprof.errors import RequestError
from attnprof.trace.events import totals, uncounted
from attnprof.trace.request.lookup import mechanism_target
from attnprof.trace.request.target import DEFAULT, hints_for
from attnprof.trace.run.runs import first_tensor, record
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.symbolic import PinnedError, run_symbolically
from attnprof.trace.solve.verification import NoFormulaError
from tests.mechanisms.cases import PARAMS, SHAPES, causals, names, params
from tests.trace.differences import (
    NUMBER,
    closed_form,
    differences_to_form,
    differences_to_torch,
    held_by_tensors,
)

#: (causal, decode, phases) of the runs; one run shows a backward pass and a training step
RUNS = (
    (False, False, ("forward",)),
    (True, False, ("forward",)),
    (False, False, ("backward", "train")),
    (True, False, ("backward", "train")),
    (False, True, ("decode",)),
)
#: a short and a longer sequence, between which code that depends on the length does something else
SHORT, LONGER = {"B": 2, "N": 20, "h": 2, "d": 4}, {"B": 3, "N": 260, "h": 4, "d": 8}
#: parameters under which another implementation runs
VARIANTS = {
    "taylor-efficient": {"impl": "symmetric", "chunk": 2},
    "longformer": {"impl": "dense-mask", "window": 2, "global_tokens": 1},
    "neural": {"impl": "naive", "depth": 2},
    "he": {"impl": "direct"},
    "we": {"impl": "fft"},
    "linformer": {"proj_len": 3, "shared": True},
    "nystromformer": {"num_landmarks": 4, "conv_kernel": 3},
    "sparse": {"pattern": "fixed", "stride": 3},
    "standard": {"bias": False},
    "super": {"per_head": True},
}
#: bytes between a peak and its closed form: two numbers that autograd saves, a row of one entry
SMALL = 2 * NUMBER


def runs(spec):
    """The runs a mechanism has."""
    masks = causals(spec.name)
    return [run for run in RUNS if run[0] in masks and (spec.abilities.decode or not run[1])]


def telling_runs(spec, scope):
    """A forward pass, a training step with a mask where there is one, a decoding step.

    Around a core, a layer does the same whatever the mask, and decodes what its core decodes. All
    runs are compared as numbers.
    """
    around = scope == "layer" and spec.abilities.attend
    masked = True in causals(spec.name) and not around
    chosen = [run for run in runs(spec) if run[0] == (masked and "train" in run[2])]
    return [run for run in chosen if not (around and run[1])]


def quick_runs(spec, scope):
    """Of Reformer, whose symbolic runs are long, the one that shows most.

    A core's training step has its forward pass; alone that is compared as numbers.
    """
    if spec.name == "reformer":
        return RUNS[3:4] if scope == "core" else ()
    return [run for run in telling_runs(spec, scope) if scope == "layer" or run[2] != ("forward",)]


def recorded(spec, scope, run, sizes):
    causal, decode, phases = run
    target = mechanism_target(spec, scope, causal=causal)
    return record(target.step if decode else target, sizes, training="train" in phases)


def form(spec, scope, run, phase, sizes):
    w = Workload(sizes["N"], sizes["h"], sizes["d"], sizes["B"], causal=run[0], phase=phase)
    return closed_form(spec.cost(w, scope))


def compare(spec, scope, shape):
    b, n, h, d = shape
    sizes = {"B": b, "N": n, "h": h, "d": d}
    for run in runs(spec):
        trace = recorded(spec, scope, run, sizes)
        for phase in run[2]:
            derived, ours = totals(trace, phase), form(spec, scope, run, phase, sizes)
            del derived["peak_bytes"]
            peaks = held_by_tensors(trace, phase), ours.pop("peak_bytes")
            assert not uncounted(trace, phase)
            assert (run, phase, derived) == (run, phase, ours)
            assert abs(peaks[1] - peaks[0]) <= SMALL, (run, phase, peaks)


# all shapes are those of tests/mechanisms/test_costs_by_aten.py, where tensors are real
@pytest.mark.parametrize("shape", [SHAPES[2]], ids=str)
@pytest.mark.parametrize("name", registry.names())
def test_a_layers_counts_are_those_of_its_closed_form(name, shape):
    compare(registry.get(name, **params(name)), "layer", shape)


@pytest.mark.parametrize("name", VARIANTS)
def test_other_implementations_count_as_their_closed_forms(name):
    compare(registry.get(name, **VARIANTS[name]), "layer", SHAPES[1])


def kinds_of_layers():
    """One mechanism of each kind of layer: around a core, the same text maps, splits and merges.

    Layers of all mechanisms are compared as numbers.
    """
    kinds = {}
    for name in registry.names():
        spec = registry.get(name)
        around = type(spec).mixed, spec.projections, spec.shares_queries, spec.flat
        kinds.setdefault(around if spec.abilities.attend else name, name)
    return list(kinds.values())


@pytest.mark.parametrize(
    ("name", "scope"),
    [(n, "layer") for n in kinds_of_layers()] + [(n, "core") for n in names(attend=True)],
)
def test_formulas_are_the_closed_forms_and_code_that_branches_on_a_size_has_none(name, scope):
    spec, hints = registry.get(name), hints_for(DEFAULT, {})
    symbols = {size: symbol(size) for size in DEFAULT}
    for run in quick_runs(spec, scope):
        causal, decode, phases = run
        target = mechanism_target(spec, scope, causal=causal)
        try:
            shown = run_symbolically(
                target.step if decode else target, hints, ("forward",) if decode else phases
            )
        except PinnedError:
            forward = causal, decode, ("forward",)
            short, longer = (recorded(spec, scope, forward, sizes) for sizes in (SHORT, LONGER))
            assert len(short.calls) != len(longer.calls), run
            continue
        except (NoFormulaError, RequestError) as refusal:
            if "while it decodes" not in str(refusal):  # a default depends on the length
                raise
            continue
        for phase in phases:
            derived = {
                **shown.forms["forward" if decode else phase],
                "peak_bytes": held_by_tensors(shown.trace, phase),
            }
            closed = form(spec, scope, run, phase, symbols)
            if shown.trace.has_loops or shown.most:  # whose formulas are written in several ways
                check_values(shown, derived, closed)
                continue
            rows = differences_to_form(derived, closed, hints)
            print_differences(name, scope, run, phase, rows)
            assert all(row.quantity == "peak_bytes" for row in rows), rows
            assert all("numbers that autograd saves" in row.why for row in rows), rows


def check_values(shown, derived, closed):
    """The same numbers wherever the formulas hold; of peaks, but for a few numbers held."""
    lengths = (300, 421, 437, 1021, 4097)
    shapes = [{"B": 3, "N": n, "h": 6, "d": d} for n in lengths for d in (16, 32)]
    inside = list(filter(shown.holds, shapes))
    assert inside
    for shape, (quantity, form) in product(inside, closed.items()):
        more = evaluate(derived[quantity], shape) - evaluate(form, shape)
        assert abs(more) <= (SMALL if quantity == "peak_bytes" else 0), (quantity, shape)


def print_differences(name, scope, run, phase, rows):
    """Differences are printed: pytest -rP shows them."""
    for row in rows:
        print(name, scope, "causal" if run[0] else "", phase, row)  # noqa: T201


def torch_counts(target, sizes, phases):
    """By ``FlopCounterMode``: of the forward pass, and of the backward pass if there is one."""
    with fake_world():
        subject = target.make(sizes)
        positional, named = target.call_inputs(sizes)
        training = "train" in phases
        for x in positional:
            x.requires_grad_(training)
        forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
        with torch.set_grad_enabled(training), forward:
            y = first_tensor(subject(*positional, **named))
        if training:
            with backward:
                y.backward(torch.ones_like(y))
    flops = {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}
    return {**flops, "train": sum(flops.values())}


@pytest.mark.parametrize("name", registry.names())
def test_torchs_counter_agrees_on_the_products(name):
    """Of training with a mask; tests/measure/test_point.py has it of other runs."""
    spec, sizes = registry.get(name, **PARAMS.get(name, {})), {"B": 2, "N": 7, "h": 3, "d": 4}
    for run in (run for run in telling_runs(spec, "core") if "train" in run[2]):
        causal, _, phases = run
        counted = torch_counts(mechanism_target(spec, causal=causal), sizes, phases)
        trace = recorded(spec, "layer", run, sizes)
        for phase in phases:
            rows = differences_to_torch(trace, phase, counted[phase])
            print_differences(name, "layer", run, phase, rows)
            assert not any(row.why == "unexplained" for row in rows), (run, phase, rows)
            ours = form(spec, "layer", run, phase, sizes)["matmul_flops"]
            assert name in ("sdpa", "gqa") or (not rows and ours == counted[phase])
