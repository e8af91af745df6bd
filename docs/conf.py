"""The documentation site: `sphinx-build -W -b html docs OUT` executes every page that has code, and links
every name."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT)]
# Notebooks' kernels are processes of their own: they find the same checkout.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
# Their kernel does not warn that it speaks to this process without encryption (docs/kernels).
os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(DOCS), os.environ.get("JUPYTER_PATH", "")]))
# Whatever the caller plots with, cells of pages show their pictures.
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"

import refsgd  # noqa: E402

# -- the project -------------------------------------------------------------------------------------------

project = "refsgd"
author = "The refsgd developers"
copyright = "The refsgd developers. Code: Apache-2.0. Text: CC-BY-4.0"
version = release = refsgd.__version__
language = "en"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "course_decks",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
    "docstrings",
    "glossary_links",
    "mathml",
    "notebooks",
    "pictures",
    "tutorials_in_docs",
]
if (DOCS / "_ext" / "algorithm_page.py").exists():
    extensions += ["algorithm_page", "algorithm_nodes", "algorithm_index", "exchange_table", "museum_page", "scheduler_page"]

templates_path = ["_templates"]
exclude_patterns = ["_build", "_ext", "_templates", "course/homework", "course/decks", "inventories", "**.ipynb_checkpoints",
                    "jupyter_execute"]

# -- where it is published -----------------------------------------------------------------------------------

# The owner sets these two, and every page has its buttons: "OWNER/NAME" of a repository whose branch gh-pages has the
# site, for Colab; the address of the site, with a JupyterLite in its folder lite (docs/howto/browser.md).
hosted_repository = ""
hosted_site = ""

# -- pages with code ---------------------------------------------------------------------------------------

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_ref_domains = ["std"]  # [BSP](bsp) is the page, never a function of the same name
nb_execution_mode = "auto"
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

# -- the reference -----------------------------------------------------------------------------------------

autosummary_generate = ["api/index.rst"]
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # what a base class says of its methods is said there, once
autodoc_typehints = "none"  # types are said in the sections of a docstring, with shapes and units
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
default_role = "autolink"  # `Recv` in a docstring is a link where such a name exists

nitpicky = True
# A single word between backticks is often a parameter or a field, and no link; a dotted name must lead
# somewhere.
nitpick_ignore_regex = [("py:obj", r"\w+"), ("py:class", r"(string|collections\.abc\.\w+|numpy\.dtype)")]

# Trimmed copies, so that a build needs no network; a name that is missing there is shown without a link.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", "inventories/python.txt"),
    "numpy": ("https://numpy.org/doc/stable/", "inventories/numpy.txt"),
    "matplotlib": ("https://matplotlib.org/stable/", "inventories/matplotlib.txt"),
}

# -- looks -------------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}
html_math_renderer = "mathml"
html_title = "refsgd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["predict.js", "frames.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "refsgd"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "back_to_top_button": False,
}
html_sidebars = {"index": [], "start": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d*\]: | {2,5}\.\.\.: | {5,8}: "
copybutton_prompt_is_regexp = True
