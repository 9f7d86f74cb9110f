"""Settings of the documentation site: sphinx-build -W docs docs/_site."""

import sys
from pathlib import Path

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
# keywords and types of other packages have no page here
nitpicky = False


def setup(_app: object) -> None:
    """Write the reference of commands from the command line itself."""
    (HERE / "commands.md").write_text(page(), encoding="utf-8")
