"""The site that `make docs` makes of these pages."""

from __future__ import annotations

from pathlib import Path

from mirrorlog import __version__

project = "mirrorlog"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["**/golden/**"]
html_theme = "furo"
html_title = f"mirrorlog {version}"
html_show_sphinx = False
templates_path: list[str] = []
nitpicky = False
suppress_warnings = ["myst.xref_missing", "myst.header"] if not Path("index.md").exists() else []
autodoc_member_order = "bysource"
autodoc_typehints = "description"
