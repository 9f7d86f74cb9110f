"""Describe one point of a measurement in plain values, which a child process can take.

A module ``my.py:MyAttention`` may stand for a mechanism. A mechanism's costs come from its closed
form, a module's from a run on fake tensors at the point's shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import inf
from typing import Any

from attnprof import registry
from attnprof.arguments import at_least, number
from attnprof.costs import Cost, CostTable, Stage
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.units import amount
from attnprof.workload import SYMBOLS, Workload

NO_STEP = "has no decoding step that attnprof knows; ask for --phase forward or train"


@dataclass(frozen=True)
class UserModule:
    """A user's module behind the interface of a mechanism: its costs, from a run.

    ``params`` hold ``args`` and ``inputs`` as ``--arg`` and ``--input`` take them. Raises
    :class:`RequestError` for a name that leads to no code, and for sizes beyond B, N, h and d.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def target(self, workload: Workload) -> Any:
        """Return the module as a target, for the workload's mask and number format."""
        from attnprof.trace.request.lookup import target_of

        target = target_of(
            self.name, self.params.get("args"), self.params.get("inputs"), None, None,
            workload.causal, workload.dtype,
        )  # fmt: skip
        if others := ", ".join(sorted(set(target.symbols) - set(SYMBOLS))):
            raise RequestError(
                f"{self.name} has sizes {others}: to profile it write its --arg and --input with "
                "B, N, h and d"
            )
        return target

    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Return counts, bytes and peak at a shape. ``scope`` is ignored: it is a layer."""
        if workload.phase == "decode":
            raise RequestError(f"{self.name} {NO_STEP}")
        return _module_costs(self, workload)

    def own_sizes(self, workload: Workload) -> dict[str, int | None]:
        """Return width and heads of a module with fixed sizes; empty if they follow h, d."""
        target = self.target(workload)
        if {"h", "d"} <= set(target.symbols):
            return {}
        shapes = [item.dims for item in target.inputs if len(item.dims) > 1 and not item.dtype]
        width = shapes[0][-1].at(workload.by_symbol()) if shapes else None
        heads = workload.num_heads if "h" in target.symbols else None
        head_dim = workload.head_dim if "d" in target.symbols else None
        return {"d_model": width, "num_heads": heads, "head_dim": head_dim}

    def __hash__(self) -> int:
        return hash((self.name, repr(self.params)))


@cache
def _module_costs(module: UserModule, workload: Workload) -> CostTable:
    """Return the costs of one run; errors are as :func:`counted` raises them."""
    return counted(module.target(workload), workload)


def counted(target: Any, workload: Workload, most: float = inf) -> CostTable:
    """Return one run of a target as a table of one stage; notes name uncounted operations."""
    from attnprof.trace.events import KINDS, totals, uncounted
    from attnprof.trace.solve.count import count

    phase = workload.phase
    trace = count(target, workload.by_symbol(), phase, most)
    all_totals = totals(trace, phase)
    counts = {name: int(all_totals[name]) for name in (*KINDS, "bytes_moved")}
    left = (f"{name} ×{times}" for name, (times, _) in uncounted(trace, phase).items())
    stage = Stage(phase, (), Cost(**counts), allocates=int(all_totals["peak_bytes"]))
    return CostTable((stage,), int(all_totals["parameters"]), notes=tuple(left))


@cache
def is_module(name: str) -> bool:
    """Return whether a name like ``my.py:A`` leads to code that is no :class:`Mechanism`."""
    if ":" not in name:
        return False
    from attnprof.user_code import loaded

    value = loaded(name)
    return not (isinstance(value, type) and issubclass(value, Mechanism))


def built(module: UserModule, workload: Workload) -> Any:
    """Return the real module: it takes tensors in order and ``causal``, and returns a tensor."""
    from torch import nn

    from attnprof.trace.run.runs import first_tensor

    target, sizes = module.target(workload), workload.by_symbol()
    inner = target.make(sizes)
    plain = {item.name: item.make(sizes, target.dtype, "meta") for item in target.inputs}
    names = [item.name for item in target.inputs if not item.literal]

    class Called(nn.Module):
        """The module between plain tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *tensors: Any, causal: bool = False) -> Any:
            arguments, named = target.placed({**plain, **dict(zip(names, tensors, strict=True))})
            return first_tensor(self.inner(*arguments, **named))

    return Called().train(workload.phase in ("backward", "train"))


def configured(
    names: Sequence[str], settings: Mapping[str, Any], args: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None, is_own: Callable[[str], bool] | None = None,
) -> list[Mechanism | UserModule]:  # fmt: skip
    """Return mechanisms with their settings and modules with their arguments, in this order.

    ``is_own`` tells modules from mechanisms, by default :func:`is_module`. Raises
    :class:`RequestError` for an unknown name, for a setting that no mechanism has, and for
    arguments where no module is named.
    """
    modules = [name for name in names if (is_own or is_module)(name)]
    registered = [name for name in names if name not in modules]
    if (args or inputs) and not modules:
        raise RequestError(
            "--arg and --input are for modules: leave them out, or name one, like my.py:MyAttention"
        )
    if settings and not registered:
        raise RequestError(
            f"--set {next(iter(settings))} is for registered mechanisms; modules take --arg"
        )
    specs = dict(zip(registered, registry.configured(registered, settings), strict=True))
    texts = {"args": list(args or ()), "inputs": list(inputs or ())}
    params = {name: values for name, values in texts.items() if values}
    return [UserModule(name, params) if name in modules else specs[name] for name in names]


@dataclass(frozen=True)
class Budget:
    """The seconds and samples that timing a point may take.

    Calls run for ``warmup_s`` first. Then there are at least ``samples`` timings (or as many as fit
    ``max_time_s``, never fewer than ``least``), and more until ``min_time_s`` is spent and the
    half-width of the median's interval is at most a share ``spread`` of it.
    """

    samples: int = 20
    min_time_s: float = 0.5
    max_time_s: float = 5.0
    warmup_s: float = 0.2
    least: int = 3
    spread: float = 0.05

    def __post_init__(self) -> None:
        at_least("samples", self.samples, 1)
        for name in ("min_time_s", "max_time_s", "spread"):
            number(name, getattr(self, name))
        if not (0 <= self.min_time_s < 1e9 and 0 < self.max_time_s < 1e9):
            raise RequestError(
                f"samples={self.samples}, min time {self.min_time_s} s, max time "
                f"{self.max_time_s} s cannot be met: use at least 1 sample and times above 0"
            )
        if self.spread <= 0:
            raise RequestError(f"spread {self.spread} cannot be reached: give a share like 0.05")
        if self.min_time_s > self.max_time_s:
            raise RequestError(
                f"min time {self.min_time_s} s is above max time {self.max_time_s} s: "
                "lower --min-time or raise --max-time"
            )


@dataclass(frozen=True)
class PointRequest:
    """One mechanism at one size on one device."""

    mechanism: str
    seq_len: int
    num_heads: int
    head_dim: int
    batch_size: int = 1
    causal: bool = False
    phase: str = "forward"
    dtype: str = "float32"
    scope: str = "layer"
    device: str = "cpu"
    seed: int = 0
    threads: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    counts: bool = True  # ask torch's counter and fvcore, too
    check: bool = True  # whether the module computes what it claims, before it is timed
    compiled: bool = False  # by torch.compile
    error: bool = False  # how far its output is from softmax attention's

    @classmethod
    def at(cls, mechanism: str, w: Workload, **more: Any) -> "PointRequest":
        """Return a mechanism's point at a workload's sizes; RequestError for sizes it lacks."""
        of_gqa = "; gqa's parameter num_kv_heads goes with all"
        free = {"value_head_dim": "--value-dim", "width": "--width", "num_kv_heads": "kv_heads"}
        for name, text in free.items():
            if (value := getattr(w, name)) is not None:
                raise RequestError(
                    f"{text} {value} is a size of closed forms, which no time and no measured peak "
                    "is of: leave it out, or ask for --kind formula without --metric time"
                    f"{of_gqa * (name == 'num_kv_heads')}"
                )
        return cls(
            mechanism, w.seq_len, w.num_heads, w.head_dim, w.batch_size, w.causal, w.phase,
            w.dtype, **more,
        )  # fmt: skip

    @property
    def d_model(self) -> int:
        """Return the model width: heads times head width."""
        return self.num_heads * self.head_dim

    @property
    def title(self) -> str:
        """Return ``standard, forward, 1,024 tokens``."""
        return f"{self.mechanism}, {self.phase}, {amount('seq', self.seq_len)}"

    @property
    def workload(self) -> Workload:
        """Return the sizes, as closed forms take them."""
        return Workload(
            self.seq_len, self.num_heads, self.head_dim, self.batch_size,
            causal=self.causal, phase=self.phase, dtype=self.dtype,
        )  # fmt: skip

    @property
    def spec(self) -> Any:
        """Return the mechanism with its parameters, or a :class:`UserModule`."""
        if is_module(self.mechanism):
            return UserModule(self.mechanism, self.params)
        return registry.get(self.mechanism, **self.params)

    @property
    def inputs(self) -> list[tuple[tuple[int, ...], str]]:
        """Return shape and format of the call's inputs: x, or q, k, v for scope ``core``."""
        if is_module(self.mechanism):
            sizes, texts = self.workload.by_symbol(), self.spec.target(self.workload).inputs
            return [
                (tuple(dim.at(sizes) for dim in item.dims), item.dtype or self.dtype)
                for item in texts
                if not item.literal
            ]
        tokens = self.spec.step_tokens if self.phase == "decode" else self.seq_len
        if self.scope == "layer":
            return [((self.batch_size, tokens, self.d_model), self.dtype)]
        shared = self.spec.kv_heads or self.num_heads
        heads = (self.num_heads, shared, shared)
        return [((self.batch_size, count, tokens, self.head_dim), self.dtype) for count in heads]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a child process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PointRequest":
        """Return the request that :meth:`to_dict` wrote."""
        return cls(**{**data, "budget": Budget(**data["budget"])})
