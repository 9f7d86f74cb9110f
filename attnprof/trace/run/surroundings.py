"""State outside of a module that its code changes: cached masks, tables by length, counters.

It outlives a run, and the next run must not meet it: its tensors belong to another world (fake,
meta or real), and a counter would choose another branch. So the containers that the user's modules,
classes, functions and caches hold are noted before a run and put back after it.
"""

import gc
import sys
import sysconfig
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import _lru_cache_wrapper, lru_cache, partial
from itertools import chain
from operator import is_
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any
from unittest.mock import patch

import torch

from attnprof.trace.run.symbols import foreign_modules, may_be_foreign
from attnprof.user_code import calling_line

#: Where installed packages lie; a package that does not import torch holds no tensors.
_PACKAGES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
#: How deep containers in containers, and objects in objects, are followed.
_DEPTH = 10
#: Values of a run that no other run may meet.
_OF_A_RUN = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_GONE = object()
#: Types of places.
_KINDS = (dict, list, set, deque, type, CellType, _lru_cache_wrapper)
#: Types of code, which is no state: a module that is imported during a run adds some for good.
_TARGET = "attnprof.trace.request.target"
_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType, classmethod, staticmethod, property)


class Surroundings:
    """The state outside of a run's module that code may change, as it is before the run."""

    def __init__(self, root: Any) -> None:
        users, installed = _modules(len(sys.modules))
        names = tuple(map(id, chain.from_iterable(map(dict.values, map(vars, users)))))
        watched = _watched(len(sys.modules), names)
        if _LEFT[-1] is not watched[0]:
            watched[0] = watched[0].renewed()
        self._before = [watched[0], _Contents(_places(_users(root, _DEPTH), {}, _DEPTH))]
        caches = [cache for before in self._before for cache in before.caches]
        self._missed = [(cache, cache.cache_info().misses) for cache in caches]
        self._imported = len(users) + len(installed)

    def tensors(self) -> list[Any]:
        """Return the tensors that the run has left so far."""
        return [*_of_a_run([*self._new(), *(x for cache in self._caches for x in _results(cache))])]

    def tables(self, subject: Any) -> Iterator[Any]:
        """Yield the dictionaries and sets that were noted, and others in caches and in a module."""
        places = (x for before in self._before for x, _ in before.copies)
        for place in (*places, *_places([subject], {}, 4 * _DEPTH)):
            if isinstance(place, (dict, set)):
                yield place
        for cache in self._caches:
            yield from (x for x in gc.get_referents(cache) if isinstance(x, dict))

    def state(self) -> list[int]:
        """Return ids of values that are new: two calls differ if something changed in between."""
        return [id(x) for value in self._new() for x in (value if type(value) is list else [value])]

    @property
    def _caches(self) -> list[Any]:
        """The functools caches that were filled since the run began."""
        return [cache for cache, missed in self._missed if cache.cache_info().misses != missed]

    def _new(self) -> list[Any]:
        """Return the values that places hold now, and did not before."""
        pairs = (pair for before in self._before for pair in before.changed())
        return [value for place, before in pairs for _, value in _new(place, before)]

    def put_back(self) -> "_Contents | None":
        """Undo the changes; where modules were imported, only those that hold tensors.

        Return the contents of the modules if the run had not changed them.
        """
        imported = sum(map(len, _modules(len(sys.modules)))) != self._imported
        in_modules, in_objects = (places.changed() for places in self._before)
        for place, before in (*in_modules, *in_objects):
            changed = [key for key, value in _new(place, before) if not isinstance(value, _CODE)]
            if changed and not (imported and not any(True for _ in _of_a_run(_parts(place)))):
                _restore(place, before, changed)
        for cache in self._caches:
            if any(True for _ in _of_a_run(_results(cache))):
                cache.cache_clear()
        return None if in_modules else self._before[0]


class _Contents:
    """Copies of the contents of places (containers, classes, cells, caches)."""

    def __init__(self, places: Iterable[Any]) -> None:
        places = [*places]
        self.caches = [place for place in places if isinstance(place, _lru_cache_wrapper)]
        others = [place for place in places if not isinstance(place, _lru_cache_wrapper)]
        self.copies = [(place, _copied(place)) for place in others]

    def changed(self) -> list[tuple[Any, Any]]:
        """Return the places that have changed, with their earlier contents."""
        return [pair for pair in self.copies if not _is_as(*pair)]

    def renewed(self) -> "_Contents":
        """Return the contents of the places now: this object if none has changed.

        A run around this one still needs the earlier contents.
        """
        return _Contents([*self.caches, *(x for x, _ in self.copies)]) if self.changed() else self


#: Marks code of the user's, which may change its modules at any time.
_ANYTHING = object()
#: For each run and each :func:`only_runs` that is going on: the contents of the modules, which
#: the last run inside left unchanged; None if there is none, or ``_ANYTHING``.
_LEFT: list[Any] = [_ANYTHING]


@contextmanager
def only_runs() -> Iterator[None]:
    """Spare runs inside a comparison: no other code of the user's is between them.

    What a run has left unchanged is what the next one begins with. A comparison of some thousand
    places takes as long as many a run.
    """
    _LEFT.append(None)
    try:
        yield
    finally:
        _LEFT.pop()


@contextmanager
def put_back_after(root: Any) -> Iterator[Surroundings]:
    """Undo changes by code inside to the user's modules and to objects that ``root`` refers to."""
    surroundings = Surroundings(root)
    _LEFT.append(_ANYTHING)
    with patch.object(torch.SymInt, "__hash__", _hash_of):
        try:
            yield surroundings
        finally:
            _LEFT.pop()
            unchanged = surroundings.put_back()
            if _LEFT[-1] is not _ANYTHING:
                _LEFT[-1] = unchanged


@lru_cache(maxsize=1)
def _modules(_imported: int) -> tuple[list[ModuleType], list[ModuleType]]:
    """Return the modules of the user's own code, and those of installed packages around torch."""
    foreign = [module for module in foreign_modules() if _package(module) != "attnprof"]
    of_torch = {_package(module) for module in foreign if "torch" in vars(module)}
    users, installed = list[ModuleType](), list[ModuleType]()
    for module in foreign:
        if not (vars(module).get("__file__") or "").startswith(_PACKAGES):  # lazy ones stay so
            users.append(module)
        elif _package(module) in of_torch:
            installed.append(module)
    return users, installed


@lru_cache(maxsize=1)
def _watched(imported: int, _names: tuple[int, ...]) -> list["_Contents"]:
    """Return a list of one: the contents of all places in the modules that may change.

    The arguments are the cache's key: modules imported, and ids of what they define. A later run
    may put newer contents in the list.
    """
    users, installed = _modules(imported)
    older = [part for place in _INSTALLED for part in _parts(place)]
    _INSTALLED.extend(_places([*map(vars, installed), *older], _VISITED, _DEPTH))
    known = set(map(id, _INSTALLED))
    others = (x for x in _places(map(vars, users), {}, _DEPTH) if id(x) not in known)
    return [_Contents([*others, *_INSTALLED])]


#: Places in installed packages, of which an import adds few, and all values that lead to them.
_INSTALLED, _VISITED = list[Any](), dict[int, Any]()


def _package(module: ModuleType) -> str:
    return module.__name__.partition(".")[0]


# -- places: containers, classes, cells of closures, caches --------------------------------
def _places(values: Iterable[Any], visited: dict[int, Any], depth: int) -> Iterator[Any]:
    """Yield the places that values lead to, each once."""
    for value in values:
        if id(value) in visited or isinstance(value, (ModuleType, str, int, float, *_OF_A_RUN)):
            continue
        visited[id(value)] = value
        if isinstance(value, type) and not _is_users(value):
            continue
        if isinstance(value, _KINDS):
            parts = _parts(value) if isinstance(value, (dict, list, set)) else []
            if parts and all(type(part) is str for part in parts):
                continue  # names, of which packages have many
            yield value
        elif _is_object(value) and id(vars(value)) not in visited:
            visited[id(vars(value))] = value
            yield vars(value)
        if depth:
            yield from _places(_parts(value), visited, depth - 1)


def _users(value: Any, depth: int) -> Iterator[Any]:
    """Yield the user's functions, classes and objects that functions of ours lead to."""
    ours = str(getattr(value, "__module__", "")).partition(".")[0] == "attnprof"
    if isinstance(value, FunctionType) and not ours:
        yield value
    elif ours or isinstance(value, (dict, list, tuple, CellType, FunctionType, partial)):
        parts = list(vars(value).values()) if type(value).__module__ == _TARGET else _parts(value)
        for part in parts if depth else ():
            yield from _users(part, depth - 1)
    elif _is_object(value) or isinstance(value, (type, MethodType)):
        yield value


def _parts(value: Any) -> list[Any]:
    """Return the values that a value holds."""
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(dict.values(value))
    elif isinstance(value, (list, set, deque, tuple)):
        parts = list(value)
    elif isinstance(value, CellType):
        with suppress(ValueError):  # nothing is in it yet
            parts = [value.cell_contents]
    elif isinstance(value, FunctionType):
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        parts = [*(value.__closure__ or ()), *defaults, *([vars(value)] if vars(value) else ())]
    elif isinstance(value, partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, type):
        parts = [x for name, x in vars(value).items() if name[:2] != "__"]
    elif isinstance(value, (classmethod, staticmethod, MethodType, _lru_cache_wrapper)):
        parts = [getattr(value, "__func__", None) or getattr(value, "__wrapped__", None)]
    elif _is_object(value):
        parts = list(vars(value).values())
    return parts


def _is_object(value: Any) -> bool:
    """Return whether a value's attributes are the user's: of a module, or of a class of theirs."""
    is_own = isinstance(value, torch.nn.Module) or _is_users(type(value))
    return is_own and hasattr(value, "__dict__")


def _is_users(kind: type) -> bool:
    """Return whether user code defines a class."""
    name = str(getattr(kind, "__module__", ""))
    return name.partition(".")[0] != "attnprof" and may_be_foreign(name)


def _results(cache: Any) -> list[Any]:
    """Return the keys and results that a functools cache holds."""
    return [x for x in gc.get_referents(cache) if not isinstance(x, (*_CODE, partial))]


def _of_a_run(values: Iterable[Any], depth: int = 5) -> Iterator[Any]:
    """Yield the tensors and symbolic sizes in values, also inside of objects like masks."""
    for value in values:
        if isinstance(value, _OF_A_RUN):
            yield value
        elif depth and not isinstance(value, (*_CODE, str, int, float)):
            keys = list(value) if isinstance(value, dict) else []
            attributes = getattr(value, "__dict__", {}) if not isinstance(value, _KINDS) else {}
            yield from _of_a_run([*keys, *_parts(value), *attributes.values()], depth - 1)


# -- the contents of a place, now and before -----------------------------------------------
def _copied(place: Any) -> Any:
    """Return a copy of a place's contents, which keeps the order."""
    if isinstance(place, dict):
        return dict.copy(place) if type(place) is dict else dict(_kind(place).items(place))
    return dict(vars(place)) if isinstance(place, type) else [*_parts(place)]


def _is_as(place: Any, before: Any) -> bool:
    """Return whether a place holds what it did before; asked of thousands before and after runs."""
    now = vars(place) if isinstance(place, type) else place
    if type(now) not in (dict, list, MappingProxyType):
        now = _copied(now)
    same = len(now) == len(before) and all(map(is_, now, before))
    return same and (type(before) is list or all(map(is_, now.values(), before.values())))


def _new(place: Any, before: Any) -> Iterator[tuple[Any, Any]]:
    """Yield keys and values that a changed place has now; None for a value that is gone."""
    now = _copied(place)
    if not isinstance(now, dict):
        yield None, now
        return
    for key, value in now.items():
        is_hidden = isinstance(key, str) and key.startswith("__")
        if not is_hidden and before.get(key, _GONE) is not value:
            yield key, value
    yield from ((key, None) for key in before if key not in now)


def _restore(place: Any, before: Any, keys: Iterable[Any]) -> None:
    if isinstance(place, CellType):
        place.cell_contents = before[0] if before else None
    elif isinstance(place, (list, set, deque)):
        place.clear()
        (place.update if isinstance(place, set) else place.extend)(before)
    else:
        kind: Any = _kind(place)
        put, drop = kind.__setitem__, kind.__delitem__
        if isinstance(place, type):
            put, drop = type.__setattr__, type.__delattr__
        for key in keys:
            if key in before:
                put(place, key, before[key])
            else:
                drop(place, key)


def _kind(place: Any) -> Any:
    """Return the class whose methods change a dictionary, whatever its own class does."""
    return OrderedDict if isinstance(place, OrderedDict) else dict


# -- symbolic sizes as keys of a user's tables ----------------------------------------------
# Torch gives symbolic sizes no hash. Code that keeps what it made in a dictionary or a functools
# cache gets one: the entry is found again by the same size. A table of numbers, as
# ``{64: 16, 128: 32}``, is refused: no condition on sizes says whether it has the size.
_plain_hash: Any = torch.SymInt.__hash__


def _hash_of(size: Any) -> int:
    """Return a hash where user code looks a size up, and note the line; else torch's answer.

    Einops takes another way where a size has no hash, and would keep sizes of a run.
    """
    node = size.node
    looked_up = getattr(node.shape_env, "looked_up", {})
    caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
    is_known = caller == "attnprof" and node.expr in looked_up
    if not is_known and (caller in {"attnprof", "einops"} or not may_be_foreign(caller)):
        return int(_plain_hash(size))
    looked_up.setdefault(node.expr, calling_line())
    return hash((id(node.shape_env), node.expr))


def check_tables(looked_up: dict[Any, str], tables: Iterable[Iterable[Any]]) -> None:
    """Raise :class:`TypeError`, as torch does, for a size that no table has, or one of numbers.

    ``tables`` are the keys of each; parts of keys that are tuples are compared by their place.
    """
    missing = dict(looked_up)
    for keys in tables if missing else ():
        columns: dict[int, list[Any]] = {}
        for key in keys:
            for place, part in enumerate(key if isinstance(key, tuple) else (key,)):
                columns.setdefault(place, []).append(part)
        for parts in columns.values():
            numbers = any(type(part) is int for part in parts)
            for part in parts:
                if isinstance(part, torch.SymInt) and not numbers:
                    missing.pop(part.node.expr, None)
    for line in missing.values():
        raise TypeError(f"a size is looked up in a table of numbers ({line})")
