"""Refuse tensors without one dense storage (nested, sparse, mkldnn): no rule counts their cost."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnprof.errors import CannotRunError
from attnprof.user_code import line_of

#: By kind, what torch's error says if a recorded run meets such a tensor, or would make one.
_KINDS = {
    "nested": r"NestedTensorImpl|aten\W+_nested_",
    "sparse": r"Sparse(Csr)?TensorImpl|aten\W+_?(to_)?sparse_",
    "mkldnn": r"OpaqueTensorImpl|aten\W+to_mkldnn",
}
_PADDED = (
    "; nn.TransformerEncoder makes them of a padding mask in evaluation: type --phase train, or "
    "build it with enable_nested_tensor=False"
)


class UnsupportedTensorError(CannotRunError):
    """Code makes tensors of a kind that is not counted."""


@contextmanager
def refusing_unsupported_tensors(*, symbolic: bool = False) -> Iterator[None]:
    """Raise :class:`UnsupportedTensorError` for torch's errors about unsupported tensors inside.

    Also for higher-order operations that fail in torch, unless sizes are ``symbolic``: numbers may
    do.
    """
    try:
        yield
    except Exception as error:
        kinds = [kind for kind, said in _KINDS.items() if re.search(said, str(error))]
        frames = traceback.extract_tb(error.__traceback__)
        if any("/torch/nested/" in frame.filename for frame in frames):  # jagged ones
            kinds = ["nested"]
        if not kinds:
            if name := not symbolic and _failed_operation(error, frames):
                raise UnsupportedTensorError(
                    f"{name}, one of torch's higher-order operations, cannot be followed here"
                ) from error
            raise
        line = line_of(error)
        place = f" ({line})" if line else ""
        padded = any(frame.filename.endswith("/nn/modules/transformer.py") for frame in frames)
        advice = _PADDED if padded and kinds == ["nested"] else ""
        raise UnsupportedTensorError(
            f"{kinds[0]} tensors are not supported{place}{advice}"
        ) from error


def _failed_operation(error: Exception, frames: traceback.StackSummary) -> str:
    """Return the higher-order operation of torch's inside which torch itself fails, if any."""
    if not isinstance(error, AttributeError | TypeError | AssertionError):
        return ""
    places = [frame.filename for frame in frames]
    inside = [Path(place).stem for place in places if "/torch/_higher_order_ops/" in place]
    names = [name for name in inside if name != "utils"]
    return names[0] if names and "/torch/" in places[-1] else ""
