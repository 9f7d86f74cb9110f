"""Draws what commands show on a terminal, for the README: python docs/pictures.py."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FOLDER = ROOT / "docs" / "pictures"
WIDTH = 80
#: Commands by the picture's name; those before the last prepare it, one with ``!`` edits.
PICTURES = {
    "check": (
        "attnprof baseline --attention my.py:MyAttention --seq 256 --no-time -o baseline.json",
        "!.reshape(B, N, D))|.reshape(B, N, D).clone())",
        "attnprof check --baseline baseline.json",
    ),
    "reproduce": ("attnprof reproduce --claim 004-T2-d8,002-INF-self_attention-add",),
}


def shown(command: str, folder: Path) -> str:
    """What a command writes to a terminal with colours, its exit code whatever it is."""
    more = {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    inherited = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    ended = subprocess.run(  # noqa: S603 # our own commands
        [sys.executable, "-m", *command.split()], cwd=folder, env=inherited | more,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ended.stdout.strip("\n")


def pictures(*names: str) -> dict[str, str]:
    """The SVG texts by name: of these, or of all."""
    module = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    drawn = {}
    for name in names or PICTURES:
        *before, command = PICTURES[name]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            code = module[1] if module else ""
            (folder / "my.py").write_text(code, encoding="utf-8")
            for line in before:
                if line.startswith("!"):
                    old, new = line[1:].split("|")
                    (folder / "my.py").write_text(code.replace(old, new), encoding="utf-8")
                else:
                    shown(line, folder)
            drawn[name] = picture(command, shown(command, folder))
    return drawn


def picture(command: str, text: str) -> str:
    """An SVG of a terminal, without the font that rich would fetch from elsewhere."""
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ " + command, "bold"), Text.from_ansi(text), sep="\n")
    svg = console.export_svg(title="", unique_id="terminal")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
