"""Where a model comes from: a configuration of transformers, a TOML file, a preset."""

from functools import partial
from pathlib import Path

from attnprof.errors import RequestError
from attnprof.models.whole import WholeModel


def subject_of(source: str, kernel: str | None = None) -> WholeModel:
    """The model that is named; :class:`RequestError` for what names none."""
    path = Path(source)
    if path.is_dir() or path.suffix == ".json":
        from attnprof.models.hub import hub_subject, read_configuration

        name = (path if path.is_dir() else path.absolute().parent / path.stem).name
        return hub_subject(read_configuration(path), name, kernel)
    if kernel is not None:
        raise RequestError(f"--kernel is for models of transformers; {source} is one of attnprof's")
    from attnprof.models import build, load
    from attnprof.models.inputs import input_texts
    from attnprof.models.transformer import Transformer

    config = load(source)
    steps = Transformer if config.kind == "decoder" else None
    return WholeModel(source, partial(build, config), input_texts(config), steps=steps)
