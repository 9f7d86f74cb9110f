"""Draws the figures of docs/gallery.md by the commands above them: python docs/gallery.py."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from attnprof.cli.app import main

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "gallery.md"
#: A command, and the figure that it draws.
SHOWN = re.compile(r"```console\n(attnprof [^\n]+)\n```\n\n!\[[^]]*\]\(([^)]+)\)")
#: Bytes of a figure.
LARGEST = 60_000


def draw() -> None:
    """All figures, in few colours."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.gate.test_history import save, times

    shutil.copy(DOCS.parent / "tests/render/data/factorial.jsonl", "sweep.jsonl")
    results = Path("results")
    results.mkdir()
    for run, value in enumerate(times(5, 20, 10)):
        save(results, f"run{run:02}.json", value, 100 if run < 15 else 130, git=f"c{run:06}")
    _run("attnprof calibrate --seconds 0.05 --calibration ceilings.json")
    for command, file in SHOWN.findall(PAGE.read_text(encoding="utf-8")):
        _run(command)
        place = DOCS / file
        place.parent.mkdir(exist_ok=True)
        with Image.open(place.name) as image:
            whole = image.convert("RGB")
        for colours in (256, 128, 64, 32, 24):  # as many as a small file holds
            whole.quantize(colours, dither=Image.Dither.NONE).save(place, optimize=True)
            if place.stat().st_size < LARGEST:
                break


def _run(command: str) -> None:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(shlex.split(command)[1:])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        draw()
