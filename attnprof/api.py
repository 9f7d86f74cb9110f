"""The Python interface; every heavy import happens inside a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof import registry
from attnprof.costs import CostTable
from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnprof.trace.derivation import Derivation


def build(
    name: str,
    d_model: int,
    num_heads: int,
    seq_len: int | None = None,
    *,
    num_kv_heads: int | None = None,
    value_head_dim: int | None = None,
    **params: Any,
) -> nn.Module:
    """A mechanism as a torch layer with ``forward(x, causal=False)`` on (batch, tokens, d_model).

    Parameters are those of ``attnprof list``. Weights come from torch's generator: seed it for
    repeatable ones. Raises :class:`attnprof.errors.RequestError` for what cannot be built.
    """
    from attnprof.blocks.assemble import build_layer, checked_sizes

    spec = registry.get(name, **params)
    sizes = checked_sizes(spec, d_model, num_heads, seq_len, num_kv_heads, value_head_dim)
    return build_layer(spec, registry.module_of(name), sizes)


def attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    seed: int = 0,
    weights: dict[str, Tensor] | None = None,
    **params: Any,
) -> Tensor:
    """A mechanism's core, without projections: (batch, heads, tokens, head_dim) in and out.

    ``weights`` replaces the core's own parameters by name; others are drawn with ``seed``.
    """
    from attnprof.blocks.assemble import attend_core

    spec = registry.get(name, **params)
    return attend_core(spec, registry.module_of(name), q, k, v, causal, seed, weights)


def cost(name: str, workload: Workload, scope: str = "layer", **params: Any) -> CostTable:
    """The closed form of a mechanism for a workload, by stage: numbers, or sympy expressions."""
    return registry.get(name, **params).cost(workload, scope)


def crossover(
    a: str,
    b: str,
    head_dim: int | Sequence[int] = 64,
    *,
    num_heads: int = 1,
    batch_size: int = 1,
    scope: str = "core",
    phase: str = "forward",
    causal: bool = False,
    dtype: str = "float32",
    kinds: Sequence[str] = ("published", "formula"),
    metrics: Sequence[str] = ("flops", "memory"),
    curves: bool = False,
    **params: Any,
) -> Report:
    """The length from which one mechanism is cheaper than the other, solved exactly.

    Records are :class:`attnprof.record.CrossoverRecord`, one a head width, metric and kind;
    ``params`` go to whichever of the two has them, ``curves`` adds what a figure draws. Raises
    :class:`attnprof.errors.RequestError` for what cannot be compared.
    """
    from attnprof import __version__
    from attnprof.symbolic.meeting import Meeting, report

    widths = [head_dim] if isinstance(head_dim, int) else list(head_dim)
    if not widths:
        raise RequestError("head_dim is empty: give one width or several, like 64")
    first, second = registry.configured([a, b], params)
    meeting = Meeting(
        first,
        second,
        Workload(1, num_heads, min(widths), batch_size, causal=causal, phase=phase, dtype=dtype),
        scope,
    )
    environment = {"attnprof": __version__}
    return report(meeting, widths, kinds, metrics, with_curves=curves, environment=environment)


def derive(
    module_or_factory: Any,
    workload: Workload | None = None,
    *,
    inputs: Sequence[str] | Mapping[str, Any] | None = None,
    args: Sequence[str] | Mapping[str, Any] | None = None,
    phases: Sequence[str] | None = None,
    at: Mapping[str, int] | None = None,
    dtype: str = "float32",
    scope: str | None = None,
    causal: bool = False,
    **params: Any,
) -> Derivation:
    """Closed forms of running torch code: FLOPs by kind, bytes moved, parameters, peak memory.

    ``module_or_factory`` is an ``nn.Module`` class or a function that returns a module (called
    with ``args``, like ``{"d_model": "h*d"}``), a module (its weights keep their sizes), a
    function of tensors, a mechanism's name (with its ``params`` and ``scope``), or text like
    ``my.py:MyAttention``. ``inputs`` are those of the call, like ``{"x": "B, N, h*d"}``. What is
    left out is guessed; ``Derivation.notes`` says how. ``workload`` gives a shape at which the
    formulas must hold, number format and mask; ``at`` does so by symbol. ``phases`` are forward
    and backward, or the workload's where that asks for another.

    Raises :class:`attnprof.errors.RequestError` for what does not run, and
    :class:`attnprof.errors.CannotRunError` where no formula is found.
    """
    from attnprof.trace.asking import derive_anything

    return derive_anything(
        module_or_factory, workload, args=args, inputs=inputs, phases=phases, at=at, dtype=dtype,
        scope=scope, causal=causal, params=params,
    )  # fmt: skip


def profile(
    attention: str | Sequence[str],
    seq_len: int | Sequence[int],
    *,
    d_model: int = 512,
    num_heads: int = 8,
    batch_size: int = 1,
    causal: bool = False,
    phase: str = "forward",
    dtype: str = "float32",
    scope: str = "layer",
    device: str = "auto",
    seed: int = 0,
    threads: int | None = None,
    samples: int = 20,
    min_time_s: float = 0.5,
    max_time_s: float = 5.0,
    isolate: bool | None = None,
    check: bool = True,
    compiled: bool = False,
    **params: Any,
) -> Report:
    """Build mechanisms, time them, measure and count them, beside their closed forms.

    ``attention`` and ``seq_len`` take one value or several; ``params`` go to every mechanism
    that has them. Records are :class:`attnprof.record.ProfileRecord`; a point that could not run
    says why in ``skipped``. ``isolate`` True measures each point in a process of its own,
    ``check`` sees first whether a module computes what it claims, ``compiled`` measures
    ``torch.compile``'s code.
    """
    from attnprof.device.roofline import with_roofline
    from attnprof.measure.batch import measure_points, plan_points
    from attnprof.measure.modules import configured
    from attnprof.measure.request import Budget

    names = [attention] if isinstance(attention, str) else list(attention)
    lengths = [seq_len] if isinstance(seq_len, int) else list(seq_len)
    if num_heads < 1 or d_model % num_heads:
        raise RequestError(f"num_heads={num_heads} does not divide d_model={d_model}")
    head_dim = d_model // num_heads
    workloads = [
        Workload(n, num_heads, head_dim, batch_size, causal=causal, phase=phase, dtype=dtype)
        for n in lengths
    ]
    mechanisms = dict(zip(names, configured(names, params), strict=True))
    points = plan_points(
        mechanisms, workloads, scope=scope, device=device, seed=seed,
        threads=threads, budget=Budget(samples, min_time_s, max_time_s), check=check,
        compiled=compiled,
    )  # fmt: skip
    return with_roofline(measure_points(points, isolate=isolate))


def sweep(
    attention: str | Sequence[str],
    seq_len: int | Sequence[int],
    output: str | Path,
    *,
    d_model: int | Sequence[int] = 512,
    num_heads: int | Sequence[int] = 8,
    batch_size: int | Sequence[int] = 1,
    causal: bool | Sequence[bool] = False,
    phase: str | Sequence[str] = "forward",
    dtype: str | Sequence[str] = "float32",
    scope: str | Sequence[str] = "layer",
    device: str | Sequence[str] = "auto",
    seed: int = 0,
    threads: int | None = None,
    samples: int = 20,
    min_time_s: float = 0.5,
    max_time_s: float = 5.0,
    isolate: bool = True,
    limit_s: float | None = None,
    processes: int = 1,
    check: bool = True,
    compiled: bool = False,
    **params: Any,
) -> Report:
    """Measure every combination of these values into a results file, or what it lacks of them.

    Sizes, names and ``params`` take one value or several. Each point is measured in a process of
    its own (``isolate``), for at most ``limit_s`` seconds, ``processes`` times. Returns what the
    file holds in the end; its records are :class:`attnprof.record.ProfileRecord`. Raises
    :class:`attnprof.errors.RequestError` for a file that is no sweep's.
    """
    from attnprof.device.roofline import with_roofline
    from attnprof.measure.request import Budget
    from attnprof.measure.sweep import plan, results, runner

    grid = plan.Grid(
        _listed(attention), _listed(seq_len), _listed(d_model), _listed(num_heads),
        _listed(batch_size), _listed(dtype), _listed(phase), _listed(device), _listed(causal),
        _listed(scope), {name: _listed(value) for name, value in params.items()},
    )  # fmt: skip
    points = plan.points_of(
        [grid], Budget(samples, min_time_s, max_time_s), seed=seed, threads=threads, check=check,
        compiled=compiled,
    )  # fmt: skip
    terms = runner.Terms(apart=isolate, limit_s=limit_s)
    runner.sweep(runner.tasks_of(points, processes), Path(output), terms)
    return with_roofline(results.load_results(Path(output)))


def _listed(value: Any) -> list[Any]:
    """One value as a list of it."""
    return list(value) if isinstance(value, (list, tuple, range)) else [value]
