"""Print a line on stderr while torch is loaded: it takes seconds, and silence looks like a hang."""

import contextlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

TEXT = "attnprof: loading torch …"
#: Bytes of addresses that torch takes when it is loaded, at least: with fewer its code ends the
#: process itself, and nobody could say why.
LEAST_BYTES = 600 << 20


class _Announcing:
    """An import hook that finds torch as Python does, and announces it when its code runs."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "torch" else None
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def announced(module: Any) -> None:
                del loader.exec_module
                if 0 <= _addresses() < LEAST_BYTES:
                    raise MemoryError
                with loading():
                    run(module)

            loader.exec_module = announced
        return spec


_FINDER: Any = _Announcing()


def announce() -> None:
    """Print a notice, once, when this process or one it waits for loads torch."""
    sys.meta_path.insert(0, _FINDER)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Run the body that loads torch under a notice, which a terminal then loses again.

    Under a progress display the notice is one of its steps.
    """
    from attnprof.processes.progress import waited_for

    stream: Any = sys.stderr
    brief = False
    progress = waited_for()
    if progress is not None and stream is not None and not stream.closed and stream.isatty():
        with progress.saying("loading torch"):
            yield
        return
    wrapped = sys.stderr is not sys.__stderr__
    if _FINDER in sys.meta_path and stream is not None and not wrapped:
        sys.meta_path.remove(_FINDER)
        brief = not stream.closed and stream.isatty()
        _write(stream, TEXT if brief else f"{TEXT}\n")
    try:
        yield
    finally:
        if brief:
            _write(stream, f"\r{' ' * len(TEXT)}\r")


def _addresses() -> int:
    """Return the bytes of addresses that this process may have; negative for no limit."""
    try:
        import resource
    except ImportError:  # no limits on this system
        return -1
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def _write(stream: Any, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
