"""Pages in a real browser: nothing serious by axe-core, no wider than a telephone, searchable."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.browser import needs_browser, open_page
from tests.cli.test_pages import COMMANDS

AXE = find_spec("axe_playwright_python")
NO_AXE = "no axe-core: pip install 'attnprof[browser]'"
PAGES = {
    **COMMANDS,
    "model": "model 001-lm-dot --seq 64 --phase forward",
    "claims": "reproduce --claim 002-INF-self_attention-add,002-TR-me-mult",
}
#: Unfolds everything; by how much the page is wider than its window.
WIDE = """document.querySelectorAll("details").forEach(fold => { fold.open = true; });
document.documentElement.scrollWidth - document.documentElement.clientWidth"""
#: What is left after a search for nothing that is there; whether one finds the last item.
SEARCH = r"""(() => {
  const field = document.querySelector("input[type=search]");
  const type = text => { field.value = text; field.dispatchEvent(new Event("input")); };
  type("zzz");
  const left = document.querySelectorAll("[data-find]:not([hidden])").length;
  const last = [...document.querySelectorAll("[data-find]")].at(-1);
  type(last.textContent.trim().split(/\s+/)[0]);
  const found = last.checkVisibility();
  type("");
  return [left, found];
})()"""
#: Findings that keep somebody out, with the elements that they are about.
SERIOUS = """axe.run({resultTypes: ["violations"]}).then(found => found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))]))"""


def findings(path, *scripts, **how):
    """What scripts and axe-core say of a page that loads nothing and raises nothing."""
    axe = next(Path(AXE.origin).parent.rglob("axe.min.js")).read_text("utf-8") if AXE else "0"
    scripts = (*scripts, f"{axe};0", SERIOUS if AXE else "[]")
    seen = open_page(path, scripts=scripts, **how)
    assert seen.errors == []
    assert seen.requests == [path.as_uri()]
    *values, _, serious = seen.values
    assert serious == []
    return values


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_finding_and_fits_its_window(attnprof, tmp_path, name):
    path = tmp_path / "page.html"
    assert attnprof(PAGES[name], f"--format html -o {path}").code == 0
    for how in ({"width": 1280}, {"width": 390, "dark": True}):
        assert findings(path, WIDE, SEARCH, **how) == [0, [0, True]]
    if AXE is None:
        pytest.skip(NO_AXE)


@needs_browser
@pytest.mark.skipif(AXE is None, reason=NO_AXE)
def test_the_explorer_has_no_serious_finding(attnprof, tmp_path):
    path = tmp_path / "page.html"
    assert attnprof(f"explore standard linear -o {path}").code == 0
    for how in ({"width": 1280}, {"width": 390, "dark": True}):
        assert findings(path, WIDE, **how) == [0]
