"""Pages in a real browser: nothing serious by axe-core, no wider than a telephone, searchable."""

import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

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
#: Stands first in the page: whatever it would load is refused, and counted.
GUARD = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:;
 style-src 'unsafe-inline'; script-src 'unsafe-inline' file:">
<script>let refused = 0; addEventListener("securitypolicyviolation", () => refused++);</script>"""
#: A window is never narrower than 500 pixels, a frame in it is; its text is what the probe finds.
FRAME = """<iframe src="page.html" width="{}" height="900" style="border: 0"></iframe>
<script>addEventListener("message", told => {{ document.body.textContent = told.data; }});
</script>"""
#: Runs in the page, and sends what it finds to the frame around it.
PROBE = """
const field = document.querySelector("input[type=search]"), root = document.documentElement;
document.querySelectorAll("details").forEach(fold => { fold.open = true; });
const wide = root.scrollWidth - root.clientWidth;
const type = text => { field.value = text; field.dispatchEvent(new Event("input")); };
type("zzz");
const left = document.querySelectorAll("[data-find]:not([hidden])").length;
const last = [...document.querySelectorAll("[data-find]")].at(-1);
type(last ? last.textContent.trim().split(/\\s+/)[0] : "");
const finds = !last || last.checkVisibility();
type("");
axe.run({resultTypes: ["violations"]}).then(found => {
  const serious = found.violations.filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))]);
  const all = {width: innerWidth, wide, left, finds, refused, serious};
  const text = encodeURIComponent(JSON.stringify(all));
  parent.postMessage(`found:${text};`, "*");
});
"""


def opened(page, width, folder, *, dark=False):
    """What the probe finds on a page that is opened this wide."""
    axe = next(Path(AXE.origin).parent.rglob("axe.min.js"))
    path = folder / "page.html"
    scripts = f'<script src="{axe.as_uri()}"></script><script>{{{PROBE}}}</script>'
    page = page.replace("<head>", f"<head>{GUARD}", 1).replace("</body>", f"{scripts}</body>")
    path.write_text(page, encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width), encoding="utf-8")
    flags = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dumped = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000",
         "--virtual-time-budget=20000", *flags, "--dump-dom",
         (folder / "frame.html").as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"HOME": str(folder)},
    )  # fmt: skip
    found = re.search("found:([^;]*);", dumped.stdout)
    assert found, dumped.stderr[-2000:]
    return json.loads(unquote(found[1]))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_finding_and_fits_its_window(attnprof, tmp_path, name):
    page = attnprof(PAGES[name], "--format html").out
    for width, dark in ((1280, False), (390, True)):
        found = opened(page, width, tmp_path, dark=dark)
        nothing = {"wide": 0, "left": 0, "finds": True, "refused": 0, "serious": []}
        assert found == {"width": width, **nothing}


def test_the_guard_counts_what_a_page_would_load(tmp_path):
    page = "<html><head></head><body><form><input type=search></form>{}</body></html>"
    assert opened(page.format(""), 800, tmp_path)["refused"] == 0
    asked = page.format('<img src="https://example.invalid/a.png">')
    assert opened(asked, 800, tmp_path)["refused"] == 1
