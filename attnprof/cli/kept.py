"""Reports of ``derive`` and ``model`` that took a while, kept in the user's cache folder.

One holds until a file or a package that it depends on changes.
"""

import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from time import process_time
from typing import Any

from attnprof.errors import RequestError
from attnprof.record.files import JOURNAL_LIMIT, read_bytes, read_json, write_whole
from attnprof.record.report import Report

#: Processor seconds, torch's import included, from which on a derivation is kept.
_LONG = 6.0
#: Most bytes of all kept reports; the oldest are removed first.
_MOST = 2**26


class KeptReport:
    """A kept report of one request, with its notes for stderr and the code it depends on.

    It lies in the user's cache folder, and holds as long as packages have the same versions and
    other files the same content (compared by digest).
    """

    def __init__(self, *request: Any) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        name = sha256(repr((request, Path.cwd(), sys.version)).encode()).hexdigest()[:32]
        self.path = Path(base) / "attnprof" / "derived" / f"{name}.json"
        self.notes: list[str] = []
        self._start = process_time()

    def read(self) -> Report | None:
        """Return the report, and set ``notes``; None if it is not kept or has changed."""
        with suppress(OSError, ValueError, KeyError, TypeError, RequestError, PackageNotFoundError):
            kept = read_json(self.path, JOURNAL_LIMIT)
            packages = {name: version(name) for name in kept["packages"]}
            files = {name: _digest(name) for name in kept["files"]}
            if (packages, files) == (kept["packages"], kept["files"]):
                self.notes = list(kept["notes"])
                return Report.from_json(kept["report"], str(self.path))
        return None

    def write(self, report: Report, *files: Path | None) -> None:
        """Keep the report if it took long; it depends on modules loaded now and ``files``."""
        if process_time() - self._start < _LONG:
            return
        with suppress(OSError, RequestError, PackageNotFoundError):
            kept = {"notes": self.notes, **_dependencies(filter(None, files))}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**kept, "report": report.to_dict()})
            write_whole(self.path, text, owned=True)
            _remove_oldest(self.path.parent)


def _remove_oldest(folder: Path) -> None:
    """Remove a folder's oldest files until the rest has at most ``_MOST`` bytes."""
    total_bytes = 0
    for path in sorted(folder.iterdir(), key=lambda x: x.stat().st_mtime_ns, reverse=True):
        total_bytes += path.stat().st_size
        if total_bytes > _MOST:
            path.unlink()


def _digest(path: str) -> str:
    return sha256(read_bytes(path, JOURNAL_LIMIT)).hexdigest()


def _dependencies(paths: Any) -> Mapping[str, Mapping[str, str]]:
    """Return where loaded modules come from: packages by version; files and ``paths`` by digest."""
    files = {str(path.resolve()) for path in paths}
    packages, installed = set[str](), packages_distributions()
    standard_library = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
    for name, module in list(sys.modules.items()):
        # an attribute of a lazy module would import it
        path = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(path, str) or not Path(path).is_file():
            continue
        if "site-packages" in Path(path).parts:
            packages.update(installed.get(name.partition(".")[0], ()))
        elif not path.startswith(standard_library):
            files.add(str(Path(path).resolve()))
    return {
        "packages": {name: version(name) for name in sorted(packages)},
        "files": {path: _digest(path) for path in sorted(files)},
    }
