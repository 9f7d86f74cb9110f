"""The symbols that stand for sizes in a symbolic run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.trace.run.conversions import Conversions


def _environment() -> Any:
    """A shape environment that does not look for the line behind every guard.

    Torch imports its whole exporter to tell its own lines from the user's.
    """
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Environment(ShapeEnv):
        def _get_stack_summary(self, *_args: Any, **_named: Any) -> tuple[SLoc, str]:
            return SLoc("", None), ""

    return Environment()


def symbolic_sizes(
    hints: Mapping[str, int], bend: Any = None, *, integers: bool = False
) -> tuple[Any, dict[str, Any], dict[Any, Any]]:
    """A shape environment, torch's size for every name, and torch's symbols → the user's.

    ``bend`` gives floats that sizes become other values; ``integers``: what the code makes an
    ``int`` of stays symbolic.
    """
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    environment = _environment()
    environment.conversions = Conversions(bend, integers)
    sizes, names = {}, {}
    for name, hint in hints.items():
        source = ConstantSource(name)
        own = environment.create_symbol(hint, source, DimDynamic.DYNAMIC)
        sizes[name] = environment.create_symintnode(own, hint=hint, source=source)
        names[own] = symbol(name)
    return environment, sizes, names
