"""What one point of a measurement is asked to do, in plain values a child process can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from attnprof import registry
from attnprof.arguments import at_least, number
from attnprof.errors import RequestError
from attnprof.measure.modules import UserModule, is_module
from attnprof.workload import Workload


@dataclass(frozen=True)
class Budget:
    """How long a point may take; seconds.

    At least ``samples`` timings (or what fits ``max_time_s``, never fewer than ``least``), and
    more until ``min_time_s`` is spent on them and the half-width of the median's interval is
    ``spread`` of it or less; before that, calls for ``warmup_s``.
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
    def at(cls, mechanism: str, w: Workload, **more: Any) -> PointRequest:
        """A mechanism's point at a workload's sizes."""
        return cls(
            mechanism, w.seq_len, w.num_heads, w.head_dim, w.batch_size, w.causal, w.phase,
            w.dtype, **more,
        )  # fmt: skip

    @property
    def d_model(self) -> int:
        """Model width: heads times head width."""
        return self.num_heads * self.head_dim

    @property
    def workload(self) -> Workload:
        """The sizes, as the closed forms take them."""
        return Workload(
            self.seq_len, self.num_heads, self.head_dim, self.batch_size,
            causal=self.causal, phase=self.phase, dtype=self.dtype,
        )  # fmt: skip

    @property
    def spec(self) -> Any:
        """The mechanism with its parameters; a module of somebody's own answers for itself."""
        if is_module(self.mechanism):
            return UserModule(self.mechanism, self.params)
        return registry.get(self.mechanism, **self.params)

    @property
    def inputs(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and number format of the call's inputs: x, or q, k and v for scope ``core``."""
        if is_module(self.mechanism):
            sizes, asked = self.workload.by_symbol(), self.spec.target(self.workload).inputs
            return [
                (tuple(dim.at(sizes) for dim in item.dims), item.dtype or self.dtype)
                for item in asked
                if not item.literal
            ]
        tokens = 1 if self.phase == "decode" else self.seq_len
        if self.scope == "layer":
            return [((self.batch_size, tokens, self.d_model), self.dtype)]
        shared = self.spec.kv_heads or self.num_heads
        heads = (self.num_heads, shared, shared)
        return [((self.batch_size, count, tokens, self.head_dim), self.dtype) for count in heads]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a child process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PointRequest:
        """The request that :meth:`to_dict` wrote down."""
        return cls(**{**data, "budget": Budget(**data["budget"])})
