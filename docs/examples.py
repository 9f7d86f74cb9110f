"""Writes the outputs that the README and choosing.md show: python docs/examples.py."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
PAGES = README, Path(__file__).with_name("choosing.md")
#: A command, in a block of its own, and the block of text below it.
SHOWN = re.compile(
    r"(```\n(?:[^`\n]*&& )?(?:\.venv/bin/)?attnprof (?P<command>[^\n]+)\n```\n"
    r"(?:<!-- end -->\n)?\n)"
    r"```text\n(?P<output>.*?)```",
    re.DOTALL,
)
WIDTH = 80


def output_of(command: str, folder: Path) -> str:
    """What a command prints in a folder with the README's my.py, on a terminal of 80 columns."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    ended = subprocess.run(  # noqa: S603 # the README's own commands
        [sys.executable, "-m", "attnprof", *command.split()], cwd=folder, env=environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in ended.stdout.splitlines()).strip("\n") + "\n"


def page(file: Path = README) -> str:
    """A page with what its commands print now."""
    text = file.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        module = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        Path(folder, "my.py").write_text(module[1] if module else "", encoding="utf-8")

        def shown(match: re.Match[str]) -> str:
            return f"{match[1]}```text\n{output_of(match['command'], Path(folder))}```"

        return SHOWN.sub(shown, text)


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(page(file), encoding="utf-8")
