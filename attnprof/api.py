"""The functions of ``import attnprof``; heavy packages are imported inside of them, when called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof import arguments as valid
from attnprof import registry
from attnprof.costs import CostTable
from attnprof.errors import RequestError
from attnprof.record import Report
from attnprof.workload import DTYPES, SCOPES, SIZES, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnprof.trace.registered import Rule
    from attnprof.trace.report.derivation import Derivation


def build(
    name: str, d_model: int, num_heads: int, seq_len: int | None = None, *,
    num_kv_heads: int | None = None, value_head_dim: int | None = None,
    head_dim: int | None = None, **params: Any,
) -> "nn.Module":  # fmt: skip
    """Return a mechanism as a torch layer ``forward(x, causal=False)``, x (batch, tokens, d_model).

    ``name`` and ``params`` are those of ``attnprof list``; a plug-in's name or ``path.py:Class``
    will do, too. ``seq_len`` is needed where weights are made for one length. ``num_kv_heads``
    groups keys and values, ``value_head_dim`` is the width of a value head, where the mechanism has
    such, ``head_dim`` that of a head, by default d_model over num_heads. A layer that decodes has
    ``init_state(batch_size)`` and ``step(x_t, state) -> (y_t, state)``. Weights come from
    torch's generator: seed it for repeatable ones. Raises
    :class:`attnprof.errors.RequestError` for what cannot be built.

    >>> attnprof.build("linear", d_model=16, num_heads=2)(torch.zeros(1, 4, 16)).shape
    torch.Size([1, 4, 16])
    """
    from attnprof.blocks.core import build_layer, checked_sizes

    spec = registry.get(valid.name_text(name), **params)
    sizes = checked_sizes(spec, d_model, num_heads, seq_len, num_kv_heads, value_head_dim, head_dim)
    return build_layer(spec, registry.module_of(name), sizes)


def attend(
    name: str, q: "Tensor", k: "Tensor", v: "Tensor", causal: bool = False, seed: int = 0,
    weights: "dict[str, Tensor] | None" = None, **params: Any,
) -> "Tensor":  # fmt: skip
    """Return a mechanism's core, without projections: (batch, heads, tokens, head_dim) in and out.

    With ``causal`` token t attends to tokens 1 to t. ``weights`` replaces the core's own parameters
    by name; others are drawn with ``seed``. Raises :class:`attnprof.errors.RequestError` for shapes
    that do not go together, and for mechanisms without queries, keys and values.

    >>> attnprof.attend("sdpa", *torch.zeros(3, 1, 2, 4, 8), causal=True).shape
    torch.Size([1, 2, 4, 8])
    """
    from attnprof.blocks.core import attend_core

    spec = registry.get(valid.name_text(name), **params)
    seed, causal = valid.seed_of(seed), valid.flag("causal", causal)
    return attend_core(spec, registry.module_of(name), q, k, v, causal, seed, weights)


def cost(name: str, workload: Workload, scope: str = "layer", **params: Any) -> CostTable:
    """Return the closed form of a mechanism for a workload, by stage, in numbers or expressions.

    ``scope`` is ``core`` (what follows q, k and v) or ``layer`` (with projections); ``params`` are
    the mechanism's own. FLOPs are counts, memory is in bytes, of the shipped implementation. Raises
    :class:`attnprof.errors.RequestError` where the mechanism cannot do what the workload asks.

    >>> table = attnprof.cost("standard", attnprof.Workload(1024, num_heads=8, head_dim=64))
    >>> table.flops, table.peak(), len(table.stages)
    (4339531776, 73400320, 9)
    """
    spec = registry.get(valid.name_text(name), **params)
    return spec.cost(_exact(_workload(workload)), valid.choice("scope", scope, SCOPES))


def crossover(
    a: str, b: str, head_dim: int | Sequence[int] = 64, *, num_heads: int = 1, batch_size: int = 1,
    scope: str = "core", phase: str = "forward", causal: bool = False, dtype: str = "float32",
    kinds: Sequence[str] = ("published", "formula"), metrics: Sequence[str] = ("flops", "memory"),
    curves: bool = False, over: str = "seq", seq_len: int | Sequence[int] = 1024,
    d_model: int | None = None, **params: Any,
) -> Report:  # fmt: skip
    """Return the length from which one mechanism is cheaper than the other, solved exactly.

    ``kinds`` are ``published`` (the printed formulas of one document), ``formula`` (ours) and
    ``derived`` (counted in code); ``metrics`` are ``flops``, ``memory``, ``matmul`` (FLOPs of
    products), and of a decoder ``state`` and ``bytes`` (that a step moves at least).
    Records are :class:`attnprof.record.CrossoverRecord`, one a head width, metric and kind:
    ``first_seq_len`` in tokens, ``closed_form`` in the head width d. ``over`` another size than
    ``seq`` (``d``, ``heads``, ``batch``, ``kv_heads``, or a parameter that is a whole number) the
    ``first_value`` of that at each of ``seq_len``, with closed forms in the length N; heads share
    a model of width ``d_model`` where that is given. ``params`` go to whichever of the two has
    them, ``curves`` adds what a figure draws. Raises :class:`attnprof.errors.RequestError` for what
    cannot be compared.

    >>> report = attnprof.crossover("taylor-direct", "taylor-efficient", metrics="flops")
    >>> {record.kind: record.first_seq_len for record in report.records}
    {'published': 4161, 'formula': 4194}
    """
    from attnprof import __version__
    from attnprof.crossovers.axis import CrossoverAxis
    from attnprof.crossovers.report import crossover_report
    from attnprof.crossovers.sides import DERIVED, KINDS, METRICS, OTHERS, Meeting

    widths = [valid.at_least("head_dim", width, 1) for width in valid.several("head_dim", head_dim)]
    possible = (*KINDS, DERIVED)
    kind_names = [valid.choice("kind", name, possible) for name in valid.several("kinds", kinds)]
    metric_names = [
        valid.choice("metric", name, (*METRICS, *OTHERS))
        for name in valid.several("metrics", metrics)
    ]
    first, second = registry.configured([valid.name_text(a), valid.name_text(b)], params)
    heads = valid.at_least("num_heads", num_heads, 1)
    batch = valid.at_least("batch_size", batch_size, 1)
    workload = Workload(1, heads, min(widths), batch, causal=causal, phase=phase, dtype=dtype)
    width = None if d_model is None else valid.at_least("d_model", d_model, 1)
    axis = CrossoverAxis(valid.text("over", over, "seq"), last=width, d_model=width)
    meeting = Meeting(first, second, workload, valid.choice("scope", scope, SCOPES), axis=axis)
    lengths = [valid.at_least("seq_len", n, 1) for n in valid.several("seq_len", seq_len)]
    return crossover_report(
        meeting, widths if over == "seq" else lengths, kind_names, metric_names,
        with_curves=valid.flag("curves", curves), environment={"attnprof": __version__},
    )  # fmt: skip


def derive(
    module_or_factory: Any, workload: Workload | None = None, *,
    inputs: Sequence[str] | Mapping[str, Any] | None = None,
    args: Sequence[str] | Mapping[str, Any] | None = None, phases: Sequence[str] | None = None,
    at: Mapping[str, int] | None = None, dtype: str = "float32", scope: str | None = None,
    causal: bool = False, **params: Any,
) -> "Derivation":  # fmt: skip
    """Return closed forms of running torch code: FLOPs by kind, bytes moved, parameters, peak.

    ``module_or_factory`` is an ``nn.Module`` class or a function that returns a module (called with
    ``args``, like ``{"d_model": "h*d"}``), a module (its weights keep their sizes), a function of
    tensors, a mechanism's name (with its ``params`` and ``scope``), or text like
    ``my.py:MyAttention``. ``inputs`` are those of the call, like ``{"x": "B, N, h*d"}``. What is
    left out is guessed; ``Derivation.notes`` says how. ``workload`` gives a shape at which the
    formulas must hold, number format and mask; ``at`` does so by symbol. ``phases`` are forward and
    backward, or the workload's where that asks for another. Raises
    :class:`attnprof.errors.RequestError` for what does not run, and
    :class:`attnprof.errors.CannotRunError` where no formula is found.

    >>> attnprof.derive(lambda q: q @ q.T, inputs={"q": "N, d"}, phases="forward").expression()
    2*N**2*d
    """
    from attnprof.trace.solve.derive import derive_anything

    return derive_anything(
        module_or_factory, None if workload is None else _workload(workload),
        args=valid.texts("args", args), inputs=valid.texts("inputs", inputs),
        phases=None if phases is None else [
            valid.text("a phase", name, "forward") for name in valid.several("phases", phases)
        ], at=valid.sizes_by_name(at),
        dtype=valid.choice("dtype", dtype, DTYPES),
        scope=None if scope is None else valid.choice("scope", scope, SCOPES),
        causal=valid.flag("causal", causal), params=params,
    )  # fmt: skip


def rule(name: str) -> "Callable[[Rule], Rule]":
    """Register what an operation of your own costs, where code that is derived calls it.

    A decorator for a function that gets the arguments of the operation ``name``, ``mylib::op``, in
    its order, each tensor as its shape (and the result's, in a parameter ``out``). It returns a
    dictionary of whole numbers: ``multiplications``, ``additions``, ``divisions``,
    ``exponentials``, ``other``, and ``matmul_flops``, which are added half to multiplications and
    half to additions. ``bytes_moved`` are operands and results unless given; without
    ``workspace_bytes``, what the kernel takes inside itself, peaks are "at least". Installed
    packages register theirs by an entry point ``attnprof.rules`` to a module. Raises
    :class:`attnprof.errors.RequestError` for a second rule of one operation.

    >>> @torch.library.custom_op("examples::gram", mutates_args=())
    ... def gram(x: torch.Tensor) -> torch.Tensor:
    ...     return x @ x.T
    >>> _ = gram.register_fake(lambda x: x.new_empty(x.shape[0], x.shape[0]))
    >>> @attnprof.rule("examples::gram")
    ... def cost_of_gram(x):
    ...     rows, width = x
    ...     return {"matmul_flops": 2 * rows * rows * width}
    >>> attnprof.derive(lambda x: gram(x), inputs={"x": "N, d"}, phases="forward").expression()
    2*N**2*d
    """
    from attnprof.trace.registered import register

    return register(name)


def profile(
    attention: str | Sequence[str], seq_len: int | Sequence[int], *, d_model: int = 512,
    num_heads: int = 8, batch_size: int = 1, causal: bool = False, phase: str = "forward",
    dtype: str = "float32", scope: str = "layer", device: str = "auto", seed: int = 0,
    threads: int | None = None, samples: int = 20, min_time_s: float = 0.5,
    max_time_s: float = 5.0, isolate: bool | None = None, check: bool = True,
    compiled: bool = False, **params: Any,
) -> Report:  # fmt: skip
    """Build mechanisms, time them, measure and count them, beside their closed forms.

    ``attention`` and ``seq_len`` take one value or several; ``params`` go to every mechanism that
    has them. A point is timed ``samples`` times, for ``min_time_s`` to ``max_time_s`` seconds.
    Records are :class:`attnprof.record.ProfileRecord` (seconds, bytes, FLOPs); a point that could
    not run says why in ``skipped``. ``isolate`` True measures each point in a process of its own,
    None those that may run out of memory. ``check`` sees first whether a module computes what it
    claims, ``compiled`` measures ``torch.compile``'s code. Raises
    :class:`attnprof.errors.RequestError` for what cannot be asked,
    :class:`attnprof.errors.CannotRunError` for a device that is not there.

    >>> report = attnprof.profile("linear", 8, d_model=8, num_heads=1, samples=1, check=False)
    >>> report.records[0].flops_torch == report.records[0].matmul_flops_formula
    True
    """
    from attnprof.device.calibration import with_roofline
    from attnprof.measure.batch import measure_points, plan_points
    from attnprof.measure.request import Budget, configured

    names = [valid.name_text(name) for name in valid.several("attention", attention)]
    width, heads = valid.tensor_size("d_model", d_model), valid.tensor_size("num_heads", num_heads)
    if width % heads:
        raise RequestError(f"num_heads={heads} does not divide d_model={width}")
    workloads = [
        Workload(
            valid.tensor_size("seq_len", n), heads, width // heads,
            valid.tensor_size("batch_size", batch_size), causal=causal, phase=phase, dtype=dtype,
        )
        for n in valid.several("seq_len", seq_len)
    ]  # fmt: skip
    mechanisms = dict(zip(names, configured(names, params), strict=True))
    points = plan_points(
        mechanisms, workloads, scope=valid.choice("scope", scope, SCOPES),
        device=valid.text("device", device, "cpu"), seed=valid.seed_of(seed),
        threads=valid.threads_of(threads), budget=Budget(samples, min_time_s, max_time_s),
        check=valid.flag("check", check), compiled=valid.flag("compiled", compiled),
    )  # fmt: skip
    apart = None if isolate is None else valid.flag("isolate", isolate)
    return with_roofline(measure_points(points, isolate=apart))


def sweep(
    attention: str | Sequence[str], seq_len: int | Sequence[int], output: str | Path, *,
    d_model: int | Sequence[int] = 512, num_heads: int | Sequence[int] = 8,
    batch_size: int | Sequence[int] = 1, causal: bool | Sequence[bool] = False,
    phase: str | Sequence[str] = "forward", dtype: str | Sequence[str] = "float32",
    scope: str | Sequence[str] = "layer", device: str | Sequence[str] = "auto", seed: int = 0,
    threads: int | None = None, samples: int = 20, min_time_s: float = 0.5,
    max_time_s: float = 5.0, isolate: bool = True, limit_s: float | None = None,
    processes: int = 1, check: bool = True, compiled: bool = False, **params: Any,
) -> Report:  # fmt: skip
    """Measure every combination of these values into a results file, or what it lacks of them.

    Sizes, names and ``params`` take one value or several; the rest is as for :func:`profile`. Each
    point is measured in a process of its own (``isolate``), for at most ``limit_s`` seconds,
    ``processes`` times. Returns the whole file, its records :class:`attnprof.record.ProfileRecord`.
    Raises :class:`attnprof.errors.RequestError` where ``output`` is no sweep's.

    >>> attnprof.sweep("sdpa", 8, "new", d_model=8, num_heads=1, isolate=False).summary["measured"]
    1
    """
    from attnprof.device.calibration import with_roofline
    from attnprof.measure import sweep as runner
    from attnprof.measure.request import Budget

    def sizes(name: str, value: Any) -> list[int]:
        return [valid.tensor_size(name, one) for one in valid.several(name, value)]

    grid = runner.Grid(
        [valid.name_text(name) for name in valid.several("attention", attention)],
        sizes("seq_len", seq_len), sizes("d_model", d_model), sizes("num_heads", num_heads),
        sizes("batch_size", batch_size), valid.several("dtype", dtype),
        valid.several("phase", phase),
        [valid.text("device", name, "cpu") for name in valid.several("device", device)],
        [valid.flag("causal", value) for value in valid.several("causal", causal)],
        [valid.choice("scope", name, SCOPES) for name in valid.several("scope", scope)],
        {name: valid.several(name, value) for name, value in params.items()},
    )  # fmt: skip
    points = runner.points_of(
        [grid], Budget(samples, min_time_s, max_time_s), seed=valid.seed_of(seed),
        threads=valid.threads_of(threads), check=valid.flag("check", check),
        compiled=valid.flag("compiled", compiled),
    )  # fmt: skip
    limit = valid.seconds("limit_s", limit_s)
    terms = runner.SweepOptions(apart=valid.flag("isolate", isolate), limit_s=limit)
    tasks = runner.tasks_of(points, valid.at_least("processes", processes, 1, 10_000))
    runner.sweep(tasks, path := valid.file_path("output", output), terms)
    return with_roofline(runner.load_results(path))


def _workload(value: Any) -> Workload:
    if isinstance(value, Workload):
        return value
    needed = "a workload is needed, like Workload(1024, num_heads=8, head_dim=64)"
    raise RequestError(f"{needed}, not {valid.shown(value)}")


def _exact(workload: Workload) -> Workload:
    """Return a workload whose arrays hold Python's integers, which never overflow."""
    sizes = {name: getattr(workload, name) for name in SIZES}
    kinds = {name: getattr(getattr(x, "dtype", None), "kind", None) for name, x in sizes.items()}
    whole = {name: sizes[name] for name, kind in kinds.items() if kind in ("i", "u")}
    return replace(workload, **{name: x.astype(object) for name, x in whole.items()})
