"""What is derived, held against runs at shapes and against torch's own counter of products."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.algebra.values import evaluate
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived


def shown(thing, args=None, inputs=("x: B, N, d",), phase="forward", at=None):
    """The target of a module or function, and what is derived of one phase."""
    target = target_of(thing, args, inputs)
    return target, derived(target, [phase], at)


def check(target, derivation, shapes, phase="forward", **how):
    """Formulas, where they hold, give what runs give; how many of the shapes lie inside."""
    forms = derivation.phases[phase]
    inside = [shape for shape in shapes if forms.holds(shape)]
    for shape in inside:
        counted = totals(record(target, shape, training=phase != "forward", **how), phase)
        values = {name: evaluate(form.expression, shape) for name, form in forms.formulas.items()}
        assert values == counted, shape
    return len(inside)


def torchs_products(run, *given, training=False, **named):
    """FLOPs of products by ``FlopCounterMode``: of a call, or of a step of training."""
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        out = run(*given, **named)
        if training:
            out.sum().backward()
    return counter.get_total_flops()
