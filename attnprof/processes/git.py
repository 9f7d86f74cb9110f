"""Git, without what users have it run: no hooks, no file-system monitor."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

#: Settings of a repository or a user that run programs, or leave files beside what is asked for.
_PLAIN = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.splitIndex": "false",
    "core.sparseCheckout": "false",
    "core.untrackedCache": "false",
    "submodule.recurse": "false",
}
#: What git sets for its hooks: of another index or folder than the one that is asked about.
_ELSEWHERE = ("GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX")


def git(
    here: Path, *arguments: str, limit_s: float = 300.0, settings: Mapping[str, str] | None = None
) -> str:
    """What a git command says, run in a folder; ``settings`` are of the environment.

    Raises OSError where there is no git, :class:`subprocess.SubprocessError` where it fails.
    """
    plain = [word for name, value in _PLAIN.items() for word in ("-c", f"{name}={value}")]
    kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    done = subprocess.run(  # noqa: S603 - git is found the way the user's shell finds it
        ["git", *plain, *arguments],  # noqa: S607 - see above
        cwd=here, capture_output=True, text=True, check=True, timeout=limit_s,
        stdin=subprocess.DEVNULL,
        env={**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", **(settings or {})},
    )  # fmt: skip
    return done.stdout.strip()
