"""Import a user's code, name its modules, and report its exceptions with the user's line."""

import gc
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import opname
from hashlib import sha1
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from attnprof.errors import NotFoundError, RequestError, closest
from attnprof.processes import SELDOM

#: Python's own library, whose lines tell a reader nothing.
_STANDARD = sysconfig.get_paths()["stdlib"]
#: Libraries whose lines say nothing of the user's code: it calls torch through some of them.
_LIBRARIES = frozenset({"torch", "sympy", "einops", "einx", "beartype", "jaxtyping"})


#: Our own folder, where a mistake raises one of these.
_OURS = Path(__file__).parent
_MISTAKES = AttributeError, TypeError, NameError, KeyError, AssertionError


class ExitedError(Exception):
    """User code ended the program; its exception is the cause."""


class OwnFailureError(Exception):
    """A mistake of attnprof's own, not of user code or torch; its exception is the cause."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Collect garbage seldom inside: runs and formulas have many objects to look through."""
    before = gc.get_threshold()
    gc.set_threshold(max(SELDOM, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def contained() -> Iterator[None]:
    """Raise :class:`ExitedError` where user code would end the program, as by ``sys.exit``.

    Raise :class:`OwnFailureError` where attnprof fails by a mistake of its own.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:
        if place := _place_of_mistake(error):
            message = f"attnprof itself fails at {place}, please report it: {error_text(error)}"
            raise OwnFailureError(message) from error
        raise
    except BaseException as error:
        raise ExitedError(error_text(error)) from error


def error_text(error: BaseException) -> str:
    """Return the exception and the line of the user's code: ``ValueError: message (my.py:12)``.

    If the message is empty, the line is quoted: ``AssertionError in `assert n > 1` (my.py:12)``.
    """
    if isinstance(error, ExitedError) and error.__cause__ is not None:
        return f"it ends the program: {error_text(error.__cause__)}"
    if isinstance(error, OwnFailureError):
        return str(error)
    name, line = type(error).__name__, line_of(error)
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    if isinstance(error, ImportError):  # those of transformers say what to type in the last line
        text = " ".join(text.split())
    first = next((one.strip() for one in text.splitlines() if one.strip()), "")[:300]
    for pattern, words in _PLAIN.items():
        if match := re.search(pattern, first):
            first = words.format(*match.groups())
    quoted = "" if first else _innermost(traceback.extract_tb(error.__traceback__)).line
    message = f"{name}: {first}" if first else f"{name} in `{quoted}`" if quoted else name
    return f"{message} ({line})" if line else message


#: Messages of a fraction, and of torch and packages on missing kernels, with plain words for each.
_PLAIN = {
    r"^Fraction\(-?\d+, 0\)": "division by zero",
    r"Could not run '([\w:.]+)' with arguments from the 'Meta' backend": (
        "the operation {} says nothing of its result without values: give it "
        "torch.library.register_fake, or choose another implementation with --arg"
    ),
    r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend": (
        "the operation {} has no kernel for {} tensors: choose another implementation with --arg"
    ),
    r"For (combine_mode='pointwise'), all input tensors need to be on CUDA": (
        "associative_scan, one of torch's higher-order operations, runs with {} on CUDA alone: "
        "choose combine_mode='generic'"
    ),
    "not compiled with CUDA|no NVIDIA driver|No CUDA GPUs|only supports? CUDA|must be on CUDA": (
        "it asks for a CUDA device: choose its plain implementation with --arg"
    ),
    r"No module named '(flash_attn\w*|xformers|triton|mamba_ssm|causal_conv1d)[\w.]*'": (
        "it needs the kernels of {}, which are not installed: choose its plain implementation "
        "with --arg"
    ),
}


def line_of(error: BaseException) -> str:
    """Return the innermost line that is neither attnprof's, torch's, nor the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    return _place(_innermost(traceback.extract_tb(error.__traceback__)))


def _place_of_mistake(error: Exception) -> str:
    """Return the line of attnprof that raises by mistake, ``rules/table.py:12``; "" for others.

    A call that hands arguments on, ``func(*args)``, raises what user code or torch does: Python has
    an instruction of its own for it.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not isinstance(error, _MISTAKES):
        return ""
    code = last.tb_frame.f_code
    hands_on = opname[code.co_code[last.tb_lasti]] == "CALL_FUNCTION_EX"
    file = Path(code.co_filename)
    inside = file.is_relative_to(_OURS / "trace") or file.is_relative_to(_OURS / "algebra")
    return f"{file.relative_to(_OURS)}:{last.tb_lineno}" if inside and not hands_on else ""


def calling_line() -> str:
    """Return the innermost line of user code that runs now (see :func:`line_of`)."""
    return _place(_innermost(traceback.extract_stack()))


def is_users(frame: traceback.FrameSummary) -> bool:
    """Return whether a frame is of the user's code: not ours, and of no library that it calls."""
    name, parts = frame.filename, Path(frame.filename).parts
    standard = name.startswith(_STANDARD) and "site-packages" not in parts
    library = standard or not _LIBRARIES.isdisjoint(parts)
    return not library and not name.startswith((str(_OURS), "<"))


def _innermost(frames: traceback.StackSummary) -> traceback.FrameSummary:
    """Return the innermost frame of the user's code; an empty one where there is none."""
    nowhere = traceback.FrameSummary("", None, "", line="")
    return next(filter(is_users, reversed(frames)), nowhere)


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame.filename else ""


def module_in(path: str, typed: str) -> ModuleType:
    """Return the module of a file, which runs once; ``typed`` (the place) begins messages."""
    where = Path(path)
    check_place(path, typed)
    unique = sha1(os.fsencode(where.resolve()), usedforsecurity=False).hexdigest()[:8]
    stem = re.sub("[\ud800-\udfff]", "_", where.stem)  # of a name that is not UTF-8
    name = f"attnprof_file_{stem}_{unique}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{typed}: {path} is not a Python file")
    module, loader = module_from_spec(spec), spec.loader
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        with _reachable(where.resolve().parent):
            _imported(typed, path, lambda: loader.exec_module(module))
    except RequestError:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _reachable(folder: Path) -> Iterator[None]:
    """Put the folder on the import path, as Python does for a script; afterwards it is the last."""
    place = str(folder)
    was_there = place in sys.path
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        if not was_there:
            sys.path.append(place)


def _imported(typed: str, place: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        missing = getattr(error, "name", None) or ""
        if isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{missing}."):
            raise NotFoundError(
                f"{typed}: there is no module '{missing}' here; type path/to/file.py:Name for a "
                "file, or install its package"
            ) from error
        relative = isinstance(error, ImportError) and "relative import" in str(error)
        advice = "; the file is part of a package: type package.module:Name" if relative else ""
        cause: BaseException = error
        while isinstance(cause, ImportError) and cause.__cause__ is not None:
            cause = cause.__cause__  # the error inside a package that imports late
        raise RequestError(
            f"{typed}: {place} does not import: {error_text(cause)}{advice}"
        ) from error


def is_place(text: str) -> bool:
    """Return whether a text names a place in code, not a registered mechanism."""
    return ":" in text or text.endswith(".py")


def _parts(text: str) -> tuple[str, str]:
    """Return the file or module of a place, and the name in it, if any."""
    path, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    return path, name


def check_place(text: str, typed: str = "") -> None:
    """Refuse a file that does not exist, without importing; ``typed`` begins the message."""
    path, _ = _parts(text)
    where = Path(path)
    if path.endswith(".py") and not where.is_file():
        near = sorted(p.name for p in where.parent.glob("*.py") if p.is_file())
        hint = closest(where.name, near) if near else "type path/to/file.py:ClassName"
        what = f"{path} is a folder" if where.is_dir() else f"there is no file {path}"
        raise NotFoundError(f"{typed or text}: {what}; {hint}")


def loaded(text: str) -> Any:
    """Return the class, function or module named ``path.py:Name`` or ``package.module:Name``."""
    path, name = _parts(text)
    if path.endswith(".py"):
        module = module_in(path, text)
    elif not all(part.isidentifier() for part in path.split(".")):
        raise RequestError(
            f"{text}: type path/to/file.py:Name or package.module:Name, like my.py:MyAttention"
        )
    else:
        with _reachable(Path.cwd()):  # as Python finds it from the current folder
            module = _imported(text, path, lambda: import_module(path))
    if not name:
        names = [f"{path}:{name}" for name in _derivable(module)[:_SHOWN]]
        hint = f"type {' or '.join(names)}" if names else f"{path} {_NOTHING}"
        raise RequestError(f"{text}: say what to derive of it; {hint}")

    def has(holder: Any, part: str) -> bool:  # packages that import late do so here
        return bool(_imported(text, path, lambda: hasattr(holder, part)))

    value: Any = module
    if not has(module, name.partition(".")[0]):
        value = _below(text, module, name)
    for part in name.split("."):
        if not has(value, part):
            raise NotFoundError(f"{text}: {path} has no '{name}': {_near(path, name, module)}")
        value = getattr(value, part)
    same_name = name.rpartition(".")[2]  # a submodule that is called as its class: package/Mixer.py
    if isinstance(value, ModuleType) and has(value, same_name):
        value = getattr(value, same_name)
    return value


def _below(text: str, package: ModuleType, name: str) -> ModuleType:
    """Return the one module of a package that defines the name, found by reading its files.

    The package itself where none does. Raises :class:`RequestError` where several do.
    """
    first = name.partition(".")[0]
    modules = [module for module, names in _definitions(package) if first in names]
    # a modular_*.py file is the source of a generated file beside it
    written = [module for module in modules if ".modular_" not in module]
    modules = written or modules
    if len(modules) > 1:
        shown = [f"{module}:{name}" for module in modules[:_SHOWN]]
        more = f" (and {len(modules) - _SHOWN} more)" if len(modules) > _SHOWN else ""
        raise RequestError(
            f"{text}: {len(modules)} modules of {package.__name__} define '{name}': type one of "
            f"{', '.join(shown)}{more}"
        )
    return _imported(text, modules[0], lambda: import_module(modules[0])) if modules else package


def _definitions(package: ModuleType) -> Iterator[tuple[str, list[str]]]:
    """Yield every module of a package, and the classes and functions that its text defines."""
    for folder in map(Path, getattr(package, "__path__", ())):
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            if all(map(str.isidentifier, parts)) and file.is_file():
                parts_of_name = parts[:-1] if parts[-1] == "__init__" else parts
                names = _DEFINED.findall(file.read_text(encoding="utf-8", errors="replace"))
                yield ".".join((package.__name__, *parts_of_name)), names


_DEFINED = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)


_SHOWN = 12
_NOTHING = "defines no module and no function"


def _derivable(module: ModuleType) -> list[str]:
    """Return names in a file that can be derived and are defined in it: modules, then functions."""
    from torch import nn

    values = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    defined = {n: v for n, v in values.items() if getattr(v, "__module__", None) == module.__name__}
    layers = [n for n, v in defined.items() if isinstance(v, type) and issubclass(v, nn.Module)]
    instances = [n for n, v in values.items() if isinstance(v, nn.Module)]
    functions = [n for n, v in defined.items() if callable(v) and not isinstance(v, type)]
    return list(dict.fromkeys([*layers, *instances, *functions]))


def _near(path: str, name: str, module: ModuleType) -> str:
    defined = _derivable(module)
    callables = [n for n, v in vars(module).items() if callable(v)]
    below = (one for _, names in _definitions(module) for one in names)
    for names in ([*defined, *callables], below):
        hint = closest(name, sorted({one for one in names if not one.startswith("_")}))
        if hint.startswith("did you mean"):
            return hint
    public = defined or [one for one in callables if not one.startswith("_")]
    more = ", …" if len(public) > _SHOWN else ""
    return f"it defines {', '.join(public[:_SHOWN])}{more}" if public else f"{path} {_NOTHING}"
