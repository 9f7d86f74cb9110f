"""Whole models from user code: made by a function without arguments, or by their class."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.whole import WholeModel
from attnprof.trace.request import signatures
from attnprof.trace.request.lookup import target_of
from attnprof.user_code import loaded


def factory_subject(source: str, inputs: Sequence[str] = ()) -> WholeModel:
    """Return the model that ``path.py:name`` or ``module:name`` makes without arguments.

    Its ``inputs``, like ``x: B, 3, 32, 32``, are guessed from the forward pass unless given, as
    ``attnprof derive`` does, and named in its notes; a model of transformers has the inputs and the
    cache of its class. Raises :class:`RequestError` if no model is made, or its inputs have unknown
    sizes.
    """
    from torch import nn

    thing = loaded(source)
    if isinstance(thing, nn.Module) or not callable(thing):
        raise RequestError(f"{source} is no function that makes a model, and no class of one")
    parameters = signatures.parameters_of(thing, source)
    if needed := [name for name, item in parameters.items() if signatures.is_required(item)]:
        raise RequestError(
            f"{source} needs {', '.join(needed)}: write a function that takes nothing and returns "
            "the whole model"
        )
    target = target_of(source, inputs=inputs or None)
    if not {*target.symbols} <= {"B", "N"}:
        raise RequestError(
            f"{source}: the sizes of its inputs are not known, guessed are "
            f"{'; '.join(target.spelled_inputs)}; give them in numbers, B and N, like "
            f'--input "{target.spelled_inputs[0].split(":")[0]}: B, 3, 224, 224"'
        )
    from attnprof.trace.run.worlds import fake_world

    with fake_world():
        model = target.make({})
    if not inputs and hasattr(model, "main_input_name") and hasattr(model, "config"):
        from attnprof.models.hub import class_subject

        return class_subject(source, type(model), model.config, partial(target.make, {}))
    taken = dict(text.split(": ", 1) for text in target.spelled_inputs)
    steps: Any = type(model) if hasattr(model, "init_state") else None
    guessed = (f"its inputs are guessed: {'; '.join(target.spelled_inputs)}",)
    notes = () if inputs else guessed
    return WholeModel(source, partial(target.make, {}), taken, steps=steps, notes=notes)
