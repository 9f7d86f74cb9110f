"""Run a model of tokens without values, and note what its modules do.

Modules tell how many rows they multiply for each token, the attention registry tells heads, widths
and masks. Experts do not run: which tokens they see is not known without values. Entry point:
:func:`text_run`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.models.attention_calls import KERNEL, AttentionCall, recorded_attention, set_kernel
from attnprof.models.parts import ModulePlace, places
from attnprof.models.whole import WholeModel
from attnprof.user_code import error_text

#: Tokens of the run: a few, since nothing depends on them.
TOKENS = 8


@dataclass
class TextRun:
    """A run without values: rows that modules multiplied for each token, and attention's calls.

    ``result`` is the model's, which has the cache of a run that was to keep one.
    """

    model: Any
    rows: Mapping[str, Fraction]
    ran: set[str]
    calls: Sequence[AttentionCall]
    result: Any = None

    def __post_init__(self) -> None:
        self.places: Mapping[str, ModulePlace] = places(self.model)
        self.modules: Mapping[str, Any] = dict(self.model.named_modules())
        output = getattr(self.model, "get_output_embeddings", lambda: None)()
        inputs = getattr(self.model, "get_input_embeddings", lambda: None)()
        self.tied = output is not None and output.weight is getattr(inputs, "weight", None)


def text_run(subject: WholeModel, **more: Any) -> TextRun:
    """Run a model over a few tokens without values, with ``more`` arguments.

    Raises :class:`CannotRunError` if its code asks for values.
    """
    import torch

    rows, ran = defaultdict[str, Fraction](Fraction), set[str]()

    def note(name: str, module: Any, inputs: Any, _result: Any) -> None:
        ran.add(name)
        first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
        width = getattr(module, "in_features", None) or getattr(module, "nx", None)
        if first is not None and width:
            rows[name] += Fraction(first.numel(), width * TOKENS)

    def hooked(model: Any) -> None:
        rows.clear()
        ran.clear()
        for name, module in model.named_modules():
            module.register_forward_hook(partial(note, name))

    model, calls, result = run_without_values(subject, TOKENS, hooked, **more)
    return TextRun(model, rows, ran, calls, result)


def run_without_values(
    subject: WholeModel,
    tokens: int,
    before: Callable[[Any], None] = lambda _: None,
    within: AbstractContextManager[Any] | None = None,
    **more: Any,
) -> tuple[Any, list[AttentionCall], Any]:
    """Build a model, call ``before`` with it, run it; return it, attention's calls, its result.

    The model runs ``within`` a context, with ``more`` arguments. Meta tensors are fast; a model
    that looks at values there runs on fake ones, which transformers takes for a trace. Raises
    :class:`CannotRunError` if it runs on neither.
    """
    import torch

    from attnprof.trace.run.worlds import fake_world, meta_world

    errors = list[Exception]()
    for device in ("meta", "cpu"):
        world = meta_world(subject.dtype) if device == "meta" else fake_world(dtype=subject.dtype)
        with world, recorded_attention() as calls, without_experts(), torch.no_grad():
            try:
                model = subject.build().eval()
                set_kernel(model, KERNEL)
                before(model)
                with within or nullcontext():
                    inputs = subject.example({"B": 1, "N": tokens, "M": tokens}, device)
                    result = model(**inputs, **more)
            except Exception as error:  # noqa: BLE001 - code of any model
                errors.append(error)
            else:
                return model, calls, result
    raise CannotRunError(
        f"{subject.name} does not run without values, so what it costs is not known: "
        f"{error_text(errors[0])}"
    ) from errors[0]


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
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    run_without_values(subject, tokens, within=counter)
    return int(counter.get_total_flops())
