"""Settings of the documentation site: sphinx-build -W docs docs/_site."""

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from command_reference import page  # noqa: E402

import attnprof  # noqa: E402

project = "attnprof"
author = "the authors of attnprof"
release = version = attnprof.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_site"]
html_theme = "furo"
html_title = f"attnprof {release}"
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"


def link_files(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Make links to files beside this folder, which have no page here, links to the files."""
    source[0] = source[0].replace("](../", "](path:../")


def setup(app: Sphinx) -> None:
    """Write the reference of commands from the command line itself."""
    (HERE / "commands.md").write_text(page(), encoding="utf-8")
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", link_files)
