"""Why code does not run, or not without values, in words."""

from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.run.unsupported import UnsupportedTensorError
from attnprof.user_code import error_text, line_of

SHAPED = "the size of a result depends on the values of a tensor"


class NotRunningError(Exception):
    """The code raises at every shape that was tried: ``cause`` at the first one."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"it does not run: {error_text(cause)}")
        self.cause = cause


def value_reason(error: Exception) -> str:
    """Return in words what cannot run without real values, and at which line."""
    if "_local_scalar_dense" in str(error) or type(error).__name__.startswith("GuardOnData"):
        return by_value(line_of(error))
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"{SHAPED}: {error_text(error)}"
    if type(error).__name__ == "UnsupportedOperatorException":
        return f"an operation says nothing of its result on fake tensors: {error_text(error)}"
    return error_text(error)


def by_value(line: str) -> str:
    """Return the reason that values of a tensor decide what runs, at a line."""
    return (
        f"its path depends on the value of a tensor, as by .item() or an if on one{place_of(line)}"
    )


def place_of(line: str) -> str:
    """Return a line in brackets, or an empty string if it is not known."""
    return f" ({line})" if line else ""


def failure_of(target: Target, sizes: Sizes, error: Exception) -> AttnprofError:
    """Return the refusal of a target that raises an error at these sizes."""
    why = str(error) if isinstance(error, UnsupportedTensorError) else ""
    if ".numpy() is not supported" in str(error):
        why = "it hands a tensor to numpy, whose work cannot be counted"
        why += f"{place_of(line_of(error))}; write that in torch"
    if why:
        return CannotRunError(f"{target.name} cannot be derived: {why}")
    where = f" at {sizes_text(sizes)}" if sizes else ""
    inputs = "; ".join(target.spelled_inputs) or "no input"
    refusal = RequestError(
        f"{target.name} does not run{where} with {inputs}: {error_text(error)}; {target.advice}"
    )
    refusal.__cause__ = error
    return refusal
