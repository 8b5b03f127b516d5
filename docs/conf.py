"""Sphinx configuration; ``make docs`` builds the documentation."""

from __future__ import annotations

import sb3_compressed

project = "sb3-compressed"
author = "The sb3-compressed maintainers"
copyright = "2026, the sb3-compressed maintainers"
release = version = sb3_compressed.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

highlight_language = "none"

html_theme = "furo"
html_title = "sb3-compressed"
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_static_path = ["_static"]
html_css_files = ["custom.css"]
