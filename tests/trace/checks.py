"""What is derived, held against runs at shapes and against torch's own counter of products."""

from types import SimpleNamespace

import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.algebra.values import evaluate
from attnprof.trace.events import Trace, totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.mixed import Mixed
from attnprof.trace.solve.symbolic import run_symbolically


def shown(thing, args=None, inputs=("x: B, N, d",), phase="forward", at=None):
    """The target of a module or function, and what is derived of one phase."""
    target = target_of(thing, args, inputs)
    return target, derived(target, [phase], at)


def counted_at(target, sizes, phase, **how):
    """Return the totals of a run at sizes."""
    return totals(record(target, sizes, training=phase != "forward", **how), phase)


def check(target, derivation, shapes, phase="forward", **how):
    """Formulas, where they hold, give what runs give; how many of the shapes lie inside."""
    forms = derivation.phases[phase]
    inside = [shape for shape in shapes if forms.holds(shape)]
    for shape in inside:
        values = {name: evaluate(form.expression, shape) for name, form in forms.formulas.items()}
        assert values == counted_at(target, shape, phase, **how), shape
    return len(inside)


def check_symbols(target, hints, sizes, phase, **how):
    """Assert that a run on symbols holds at sizes and gives what a run there counts; return it."""
    run = run_symbolically(target, hints, [phase])
    assert run.holds(sizes)
    counted = counted_at(target, sizes, phase, **how)
    assert {name: evaluate(form, sizes) for name, form in run.forms[phase].items()} == counted
    return counted


def torchs_products(run, *given, training=False, **named):
    """FLOPs of products by ``FlopCounterMode``: of a call, or of a step of training."""
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        out = run(*given, **named)
        if training:
            out.sum().backward()
    return counter.get_total_flops()


def mixed_formulas(hints, blocks, ends, least, turns=1, *, unit=None, forms=None, trace=None):
    """Formulas over sizes that ``blocks`` says were numbers in runs, or numbers of blocks."""
    target = SimpleNamespace(symbols=tuple(hints))
    plan = SimpleNamespace(target=target, hints=hints, blocks=blocks)
    trace = trace or Trace([], 0)
    return Mixed(plan, unit, forms or {}, trace, SizeConditions([]), least, ends, {}, turns)
