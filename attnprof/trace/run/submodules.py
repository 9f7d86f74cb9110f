"""Follow which submodule of a module runs, by its name in ``named_modules``."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import getattr_static, isfunction
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.utils._pytree import tree_leaves

from attnprof.trace.events import Size
from attnprof.trace.rules import tensors_in
from attnprof.trace.run.values import key_of
from attnprof.trace.sizes import numel


class Submodules:
    """The submodules of a module; ``entries``: how many parameter entries each holds itself."""

    def __init__(self, subject: Any) -> None:
        is_module = isinstance(subject, nn.Module)
        named = list(subject.named_modules()) if is_module else []
        self._names = {id(part): name for name, part in named}
        self._kinds = {type(part) for _, part in named}
        self._inside = [""]
        self._named, self._owners = named, dict[int, str]()
        self.entries: dict[str, Size] = {}
        visited = set[int]()  # shared parameters belong to the first, as in ``parameters()``
        for name, part in named:
            new = {id(x): x for x in part.parameters(recurse=False) if id(x) not in visited}
            visited |= new.keys()
            self.entries[name] = sum(map(numel, new.values()), start=0)

    @property
    def running(self) -> str:
        """The name of the innermost submodule that is running; empty for the module itself."""
        return self._inside[-1]

    @contextmanager
    def spelt_out(self) -> Iterator[None]:
        """Attribute operations inside a kernel to the submodules whose weights they take."""
        if self._owners:  # a kernel inside of one
            yield
            return
        before = self.running
        weights = ((name, x) for name, part in self._named for x in part.parameters(recurse=False))
        inside = f"{before}." if before else ""
        self._owners = {key_of(x): name for name, x in weights if name.startswith(inside)}
        self._inside.append(before)
        try:
            yield
        finally:
            self._owners = {}
            self._inside.pop()

    def note_operands(self, args: Any) -> None:
        """Note an operation's operands: in a kernel, weights among them name the submodule."""
        for tensor in tensors_in(args) if self._owners else ():
            self._inside[-1] = self._owners.get(key_of(tensor), self.running)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow calls of modules inside, and of their decoding steps.

        Operations of a module without a name here are part of its caller.
        """
        with ExitStack() as patches:
            patches.enter_context(patch.object(nn.Module, "__call__", self._naming("__call__")))
            for kind in self._kinds:
                if isfunction(getattr_static(kind, "step", None)):
                    patches.enter_context(patch.object(kind, "step", self._naming("step", kind)))
            yield

    def _naming(self, name: str, kind: Any = nn.Module) -> Callable[..., Any]:
        """Return a method of modules that names the running submodule while it runs."""
        plain = getattr(kind, name)

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._inside.append(self._names.get(id(module), self.running))
            try:
                return plain(module, *args, **kwargs)
            finally:
                self._inside.pop()

        return called


def held_by(subject: Any) -> list[Any]:
    """Return values that a module and its submodules hold, also in lists and dictionaries."""
    parts = subject.modules() if isinstance(subject, nn.Module) else ()
    return [value for part in parts for value in tree_leaves(vars(part))]
