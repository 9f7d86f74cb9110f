"""Run a model of tokens without values, and note what its modules do.

Modules tell how many rows they multiply for each token, the attention registry tells heads, widths
and masks. Experts do not run: which tokens they see is not known without values. Entry point:
:func:`text_run`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.models.attention_calls import KERNEL, AttentionCall, recorded_attention
from attnprof.models.parts import ModulePlace, places
from attnprof.models.whole import WholeModel
from attnprof.user_code import error_text

#: Tokens of the run: a few, since nothing depends on them.
TOKENS = 8


@dataclass
class TextRun:
    """A run without values: rows that modules multiplied for each token, and attention's calls."""

    model: Any
    rows: Mapping[str, Fraction]
    ran: set[str]
    calls: Sequence[AttentionCall]

    def __post_init__(self) -> None:
        self.places: Mapping[str, ModulePlace] = places(self.model)
        self.modules: Mapping[str, Any] = dict(self.model.named_modules())
        output = getattr(self.model, "get_output_embeddings", lambda: None)()
        inputs = getattr(self.model, "get_input_embeddings", lambda: None)()
        self.tied = output is not None and output.weight is getattr(inputs, "weight", None)


def text_run(subject: WholeModel) -> TextRun:
    """Run a model over a few tokens without values."""
    import torch

    from attnprof.trace.run.worlds import meta_world

    rows, ran = defaultdict[str, Fraction](Fraction), set[str]()

    def note(name: str, module: Any, inputs: Any, _result: Any) -> None:
        ran.add(name)
        first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
        width = getattr(module, "in_features", None) or getattr(module, "nx", None)
        if first is not None and width:
            rows[name] += Fraction(first.numel(), width * TOKENS)

    with meta_world(subject.dtype), recorded_attention() as calls, without_experts():
        try:
            model = subject.build().eval()
            _set_kernel(model)
            for name, module in model.named_modules():
                module.register_forward_hook(partial(note, name))
            with torch.no_grad():
                model(**subject.example({"B": 1, "N": TOKENS, "M": TOKENS}, "meta"))
        except Exception as error:
            raise CannotRunError(
                f"{subject.name} does not run without values, so its FLOPs a token are not known: "
                f"{error_text(error)}"
            ) from error
    return TextRun(model, rows, ran, calls)


def _set_kernel(model: Any) -> None:
    """Make all attention of a model go through our kernel."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = KERNEL  # noqa: SLF001 - checked otherwise


@contextmanager
def without_experts() -> Iterator[None]:
    """Give what experts get instead of running them: which tokens they see is not known."""
    from unittest.mock import patch

    import torch

    usual = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **how: Any) -> Any:
        if type(module).__name__.endswith("Experts") and args:
            return torch.empty_like(args[0])
        return usual(module, *args, **how)

    with patch.object(torch.nn.Module, "__call__", call):
        yield


def counted_products(subject: WholeModel, tokens: int) -> int:
    """Return the FLOPs of products in a run, without attention that is recorded."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from attnprof.trace.run.worlds import meta_world

    with meta_world(subject.dtype), recorded_attention(), without_experts():
        model = subject.build().eval()
        _set_kernel(model)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(**subject.example({"B": 1, "N": tokens, "M": tokens}, "meta"))
    return int(counter.get_total_flops())
