"""Why code does not run without values, in words."""

from attnprof.user_code import error_text, line_of

SHAPED = "the size of a result depends on the values of a tensor"


def value_reason(error: Exception) -> str:
    """What of torch's cannot run without real numbers, in words, and on which line."""
    if "_local_scalar_dense" in str(error) or type(error).__name__.startswith("GuardOnData"):
        return by_value(line_of(error))
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"{SHAPED}: {error_text(error)}"
    if type(error).__name__ == "UnsupportedOperatorException":
        return f"an operation says nothing of its result on fake tensors: {error_text(error)}"
    return error_text(error)


def by_value(line: str) -> str:
    """That values decide what runs, at a line."""
    return (
        f"its path depends on the value of a tensor, as by .item() or an if on one{place_of(line)}"
    )


def place_of(line: str) -> str:
    """A line in brackets, if it is known."""
    return f" ({line})" if line else ""
