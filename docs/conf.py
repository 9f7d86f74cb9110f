"""Settings of the documentation site: sphinx-build -W docs docs/_site."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from command_reference import page  # noqa: E402

import attnprof  # noqa: E402
from attnprof.cli.app import main  # noqa: E402

project = "attnprof"
author = "the authors of attnprof"
release = version = attnprof.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_site"]
html_theme = "furo"
html_show_copyright = False
html_title = f"attnprof {release}"
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"


#: The explorer of a few mechanisms, on its page.
EXPLORER = """
<iframe src="explore.html" title="The explorer" style="width: 100%; height: 100rem; border: 0">
</iframe>
"""


def fit_for_the_site(_app: Sphinx, page_name: str, source: list[str]) -> None:
    """Make links to files beside this folder links to the files; show the explorer on its page."""
    source[0] = source[0].replace("](../", "](path:../") + EXPLORER * (page_name == "explorer")


#: Marks that the theme leaves out: levels of headings, and keys for what scrolls sideways.
MARKS = {
    'role="heading"': 'role="heading" aria-level="2"', "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}  # fmt: skip


def mark_for_everybody(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object
) -> None:
    """Mark what readers by ear or by keyboard need to know, after the theme has filled the page."""
    for part in {"body", "furo_navigation_tree"} & {*context}:
        for plain, marked in MARKS.items():
            context[part] = context[part].replace(plain, marked)


def write_explorer(app: Sphinx, error: Exception | None) -> None:
    """Write the explorer beside the pages."""
    with suppress(SystemExit):
        if error is None and app.builder.format == "html":
            main(["explore", "standard", "sdpa", "linear", "-o", f"{app.outdir}/explore.html"])


def setup(app: Sphinx) -> None:
    """Write the reference of commands from the command line itself."""
    (HERE / "commands.md").write_text(page(), encoding="utf-8")
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", fit_for_the_site)
    app.connect("html-page-context", mark_for_everybody, priority=900)
    app.connect("build-finished", write_explorer)
