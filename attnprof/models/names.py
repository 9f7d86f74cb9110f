"""Find the model that a name stands for: a file, a released model, a type, or a name on the Hub.

:func:`config_of` returns the fields of a ``config.json`` for any of these, :func:`named` also a
short name and notes. Released models are in ``released.json``: the fields of ``config.json`` that
change a cost and are not the defaults of the model's type, the name on the Hub, and the published
number of parameters.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from os import PathLike
from pathlib import Path
from typing import Any

from attnprof.errors import CannotRunError, NotFoundError, RequestError, closest
from attnprof.models.config import load, presets
from attnprof.models.hub_config import checked_fields, model_types, read_configuration
from attnprof.user_code import is_place

#: A name on the Hub: an owner and a model.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Released:
    """A released model: its name on the Hub, its parameters, and the fields of its config.json.

    ``published`` is the number of parameters that its makers give, 0 if unknown; ``beyond`` names
    parameters that they count and transformers' model does not have, as a vision tower.
    """

    name: str
    hub: str
    parameters: int
    config: Mapping[str, Any]
    published: int = 0
    beyond: str = ""

    @property
    def note(self) -> str:
        """Return the sentence on the source of the model's configuration."""
        more = f"; {self.published:,} parameters are published, with {self.beyond}"
        return f"a configuration that is shipped, of {self.hub}{more if self.beyond else ''}"


@dataclass(frozen=True)
class NamedModel:
    """The fields of a model's ``config.json``, a short name of it, and notes on their source."""

    name: str
    fields: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@cache
def released() -> Mapping[str, Released]:
    """Return the released models that are shipped, by name."""
    file = Path(__file__).with_name("released.json")
    table = json.loads(file.read_text("utf-8"))
    return {name: Released(name, **fields) for name, fields in table.items()}


def config_of(model: str | PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's ``config.json``, with its ``model_type``.

    ``model`` is anything that :func:`named` takes, or the fields themselves; a description by sizes
    alone gets the type that has such layers. Raises :class:`RequestError` for other things, and
    :class:`CannotRunError` if the Hub cannot be asked.
    """
    named_model = named(model)
    return dict(checked_fields(named_model.fields, named_model.name))


def fields_of(source: str) -> Mapping[str, Any] | None:
    """Return the fields of a released model or one on the Hub; None for files and types."""
    if source.lower() in released() or (_is_name(source) and _HUB_NAME.fullmatch(source)):
        return named(source).fields
    return None


def check_sources(*sources: str) -> None:
    """Raise :class:`RequestError` for a name that no model has, or a file that describes none.

    Torch is not imported, and code not run: commands call this first.
    """
    for source in sources:
        if source.endswith(".toml"):
            load(source)
        elif _is_name(source) or _is_file(source):
            named(source)


def _is_name(source: str) -> bool:
    """Return whether a source is a name to look up, and no code, file or preset of ours."""
    if is_place(source) or source.endswith(".toml") or _is_file(source):
        return False
    return source.lower() in released() or source not in presets()


def _is_file(source: str) -> bool:
    """Return whether a source is a folder or a ``.json`` file."""
    return Path(source).is_dir() or source.endswith(".json")


def named(source: str | PathLike[str] | Mapping[str, Any]) -> NamedModel:
    """Return the model of a name, or of the fields of its ``config.json``.

    In this order: a folder or a ``.json`` file, a released model in any case of letters, a name on
    the Hub like ``owner/model``, a type of transformers with its defaults. Raises
    :class:`NotFoundError` for a name that is none of these, and :class:`RequestError` for code and
    models of ours, which have no ``config.json``.
    """
    if isinstance(source, Mapping):
        return NamedModel("the configuration", source)
    path, text, types = Path(source), str(source), list[str]()
    if not text:
        raise NotFoundError(f"no model is called '': {_suggested(text, types)}")
    if not (_is_name(text) or _is_file(text)):
        raise RequestError(
            f"{text}: only models of transformers are understood here: give a config.json, its "
            "folder or a name (attnprof list --models), or type attnprof model for its costs"
        )
    if _is_file(text):
        name = (path if path.is_dir() else path.absolute().parent / path.stem).name
        return NamedModel(name, read_configuration(path))
    if model := released().get(text.lower()):
        return NamedModel(model.name, model.config, (model.note,))
    if _HUB_NAME.fullmatch(text):
        note = "its config.json comes from the Hub; code beside it is not run"
        return NamedModel(text.rpartition("/")[2], hub_configuration(text), (note,))
    with suppress(CannotRunError):
        types = model_types()
    if text in types:
        note = f"the sizes are the defaults of transformers' type {text}: no model need have them"
        return NamedModel(text, {"model_type": text}, (note,))
    raise NotFoundError(f"no model is called {text!r}: {_suggested(text, types)}")


def _suggested(text: str, types: list[str]) -> str:
    """Return the nearest names, and the other forms that may be typed."""
    near = closest(text.lower(), [*released(), *types, *presets()])
    near = f"{near} " if near.startswith("did you mean") else ""
    return (
        f"{near}give a config.json or its folder, a name of attnprof list --models, a type of "
        "transformers like gpt_oss, a name on the Hub like Qwen/Qwen3-8B, or my.py:factory"
    )


@cache
def hub_configuration(name: str) -> Mapping[str, Any]:
    """Return the fields of the ``config.json`` of a model on the Hub, and fetch no other file.

    huggingface_hub fetches it, with its cache, token, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE``.
    Raises :class:`CannotRunError` without it, without a network, and without access, and
    :class:`NotFoundError` for a name that the Hub does not have.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise CannotRunError(
            f"{name} is fetched from the Hub by huggingface_hub, which is not installed; type "
            f"pip install 'attnprof[hf]'{_or_shipped(name)}"
        ) from error
    try:
        file = huggingface_hub.hf_hub_download(
            name, "config.json", library_name="attnprof", local_files_only=not _is_reachable(name)
        )
    except errors.GatedRepoError as error:
        raise CannotRunError(
            f"{name}: its makers ask for consent before they give access: accept the terms at "
            f"https://huggingface.co/{name}, and type hf auth login{_or_shipped(name)}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        near = _shipped_like(name)
        raise NotFoundError(
            f"the Hub has no model {name}, or it is private and needs hf auth login"
            f"{f'; did you mean {near}?' if near else _or_shipped(name)}"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise CannotRunError(f"{name}: {_unreachable()}{_or_shipped(name)}") from error
    except errors.EntryNotFoundError as error:
        raise NotFoundError(
            f"{name} has no config.json on the Hub: it is no model of transformers"
        ) from error
    except errors.HFValidationError as error:
        raise RequestError(f"{name} is no name on the Hub: {error}") from error
    except (errors.HfHubHTTPError, OSError) as error:
        why = " ".join(str(error).split())
        raise CannotRunError(f"{name}: the Hub gave no config.json: {why}") from error
    return read_configuration(Path(file))


def _is_reachable(name: str) -> bool:
    """Return whether the Hub answers for a model's ``config.json``.

    One question without a second try: huggingface_hub by itself tries for half a minute before it
    says that there is no network. Raises its errors where the Hub refuses.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), library_name="attnprof")
    except errors.HfHubHTTPError as error:
        if error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return False
    except (errors.HFValidationError, errors.FileMetadataError):
        raise
    except Exception:  # noqa: BLE001 - releases of huggingface_hub use requests, httpx and others
        return False
    return True


def _unreachable() -> str:
    """Return why the Hub cannot be used, and a remedy."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set, and its config.json is not in the cache; unset it"
    return f"the Hub ({constants.ENDPOINT}) cannot be reached, nor is its config.json in the cache"


def _shipped_like(name: str) -> str:
    """Return the name on the Hub of a released model that is spelt like this one; "" if none is."""
    from difflib import get_close_matches

    hubs = {model.hub.lower(): model.hub for model in released().values()}
    near = get_close_matches(name.lower(), list(hubs), n=1, cutoff=0.8)
    return hubs[near[0]] if near else ""


def _or_shipped(name: str) -> str:
    """Return the end of a message: the command without the Hub if the model is shipped, or ""."""
    models = (model for model in released().values() if model.hub.lower() == name.lower())
    model = next(models, None)
    return f"; shipped is {model.name}: type attnprof model {model.name}" if model else ""
