"""Pages in a real browser: nothing serious by axe-core, no wider than a telephone, searchable."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.test_pages import COMMANDS

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
AXE = find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium"),
    pytest.mark.skipif(AXE is None, reason="no axe-core: pip install 'attnprof[browser]'"),
]
PAGES = {
    **COMMANDS,
    "model": "model 001-lm-dot --seq 64 --phase forward",
    "claims": "reproduce --claim 002-INF-self_attention-add,002-TR-me-mult",
}
#: Runs in the page, and leaves what it finds as the document's only text.
PROBE = """
const box = document.querySelector("input[type=search]");
const narrow = document.documentElement.scrollWidth - innerWidth;
box.value = "zzz"; box.dispatchEvent(new Event("input"));
const left = document.querySelectorAll("[data-find]:not([hidden])").length;
box.value = ""; box.dispatchEvent(new Event("input"));
const loads = performance.getEntriesByType("resource").length;
const drawn = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null;
axe.run({resultTypes: ["violations"]}).then(found => {
  const serious = found.violations.filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200))]);
  document.documentElement.innerHTML = "<body><pre>@@" + encodeURIComponent(
    JSON.stringify({narrow, left, loads, drawn, serious})) + "@@</pre></body>";
});
"""


def opened(page, width, folder, *, dark=False):
    """What the probe finds on a page that is opened this wide."""
    axe = next(Path(AXE.origin).parent.rglob("axe.min.js")).read_text(encoding="utf-8")
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{axe}</script><script>{PROBE}</script></body>"))
    frame = folder / "frame.html"  # a window is never narrower than 500 pixels, a frame is
    frame.write_text(path.read_text())
    flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dumped = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
         "--virtual-time-budget=20000", *flags, "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, env=os.environ | {"HOME": str(folder)},
    )  # fmt: skip
    found = re.search("@@(.*?)@@", dumped.stdout)
    assert found, dumped.stderr[-2000:]
    from urllib.parse import unquote

    return json.loads(unquote(found[1]))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_finding_and_fits_its_window(attnprof, tmp_path, name):
    page = attnprof(PAGES[name], "--format html").out
    for width, dark in ((1280, False), (390, True)):
        found = opened(page, width, tmp_path, dark=dark)
        assert found["serious"] == []
        assert found["narrow"] <= 0
        assert (found["left"], found["loads"]) == (0, 0)
