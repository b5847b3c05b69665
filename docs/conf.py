"""Configuration of the documentation: executed lessons and recipes, reference from docstrings.

sphinx-build -W -b html docs docs/_build/html

The build needs no network, and no page loads anything from another host.
"""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

EXTENSIONS = str(Path(__file__).parent / "_extensions")
sys.path.insert(0, EXTENSIONS)

# notebooks run in parallel, one thread each, and train each model once for all pages
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # from tqdm in every notebook
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [EXTENSIONS, os.environ.get("PYTHONPATH")]))
os.environ["PYTHONSTARTUP"] = str(Path(EXTENSIONS) / "startup.py")

project = "regard"
author = copyright = "the authors of regard"
version = release = version_of("regard")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commands",
    "docstrings",
    "kernels",
    "mathml",
    "notebooks",
    "widget",
]
exclude_patterns = ["_build"]
templates_path: list[str] = []

# every build runs every cell; an error fails the build
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = -1  # a page can wait until another one has trained the models
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # otherwise pages load scripts from two hosts
nb_mime_priority_overrides = [("html", "image/svg+xml", 0)]
nb_render_markdown_format = "myst"
nb_render_image_options = {"alt": "figure drawn by the cell above"}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# headings that a cell prints do not continue the levels of the page
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"undoc-members": True}
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "literal"

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(numpy|collections|torch|typing|pathlib)\..*")]

html_theme = "furo"
html_title = "regard"
html_static_path = ["_static"]
html_css_files = ["regard.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_theme_options = {"navigation_with_keys": True}
