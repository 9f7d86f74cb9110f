"""What is derived: how to make it, and its inputs, at any sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnprof.trace.request.expressions import Expression, at

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Input:
    """One argument of the call: a tensor of these dimensions, or (``literal``) a plain value.

    A plain value may be an expression: it is then the number it has at the sizes.
    """

    name: str
    dims: tuple[Expression, ...] = ()
    dtype: str = ""
    value: Any = None
    literal: bool = False

    @property
    def spelled(self) -> str:
        """As ``--input`` takes it: ``x: B, N, h*d``, ``mask: N, N bool``, ``causal: True``."""
        if self.literal:
            value = self.value.text if isinstance(self.value, Expression) else repr(self.value)
            return f"{self.name}: {value}"
        dims = ", ".join(dim.text for dim in self.dims)
        body = f"{dims}," if len(self.dims) == 1 else dims or "()"
        return f"{self.name}: {body} {self.dtype}".rstrip()

    def fixed(self, sizes: Mapping[str, int]) -> Input:
        """The same with some sizes given."""
        dims = (replace(dim, given={**dim.given, **sizes}) for dim in self.dims)
        return replace(self, dims=tuple(dims))

    def made(self, sizes: Sizes, default_dtype: str, device: str) -> Any:
        """The tensor (zeros: values do not matter) or the value."""
        import torch

        if self.literal:
            return at(self.value, sizes)
        shape = [dim.whole_at(sizes, f'--input "{self.spelled}"') for dim in self.dims]
        return torch.zeros(shape, dtype=getattr(torch, self.dtype or default_dtype), device=device)


@dataclass(frozen=True)
class Target:
    """``make`` builds the module (or gives the function) for sizes; ``inputs`` are what it takes.

    Inputs named in ``keywords`` are passed by name, others in order; ``dtype`` is that of floating
    inputs and of parameters. ``notes`` tell the reader what was guessed of the request, ``asked``
    are the arguments and inputs it gave. ``step`` is what phase ``decode`` runs, if anything.
    ``real``: on fake tensors it does not do what it does on real ones, so that it runs on those;
    ``own``: the code is attnprof's, which does the same on both.
    """

    name: str
    make: Callable[[Sizes], Any]
    inputs: tuple[Input, ...]
    symbols: tuple[str, ...]
    dtype: str = "float32"
    keywords: frozenset[str] = field(default_factory=frozenset)
    notes: tuple[str, ...] = ()
    step: Target | None = None
    real: bool = False
    own: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def spelled_inputs(self) -> list[str]:
        """Every input as ``--input`` takes it."""
        return [item.spelled for item in self.inputs]

    def call_inputs(self, sizes: Sizes, device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments of the call."""
        made = {item.name: item.made(sizes, self.dtype, device) for item in self.inputs}
        positional = [value for name, value in made.items() if name not in self.keywords]
        return positional, {name: made[name] for name in self.keywords}

    def fixed(self, **sizes: int) -> Target:
        """The same with some sizes given: what remains are symbols."""
        free = tuple(name for name in self.symbols if name not in sizes)
        return replace(
            self,
            make=lambda rest: self.make({**sizes, **rest}),
            inputs=tuple(item.fixed(sizes) for item in self.inputs),
            symbols=free,
            step=self.step and self.step.fixed(**sizes),
        )
