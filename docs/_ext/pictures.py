"""Fails the build where a cell plots and its page shows no picture, and where a picture has no alternative
text.

A cell states the text in its metadata: ``mystnb: {image: {alt: ...}}``.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

#: a call that draws: of pyplot, of `refsgd.display.plots`, or of a method `plot`; not in the body of a
#: function
DRAWS = re.compile(r"^(?!def |    ).*(?:\b(?:plt|plots)\.\w+|\w\.plot)\(", re.M)
FILE = re.compile(r"[\w./-]*\.(?:png|svg|jpe?g|gif|webp)")


def check(app: Sphinx, doctree: nodes.document) -> None:
    """Raise `ExtensionError` for the first flaw of a page."""
    page = app.env.docname
    for cell in doctree.findall(lambda n: isinstance(n, nodes.container)
                                and n.get("nb_element") == "cell_code"):
        parts = {part.get("nb_element"): part for part in cell.children if isinstance(part, nodes.container)}
        code = parts["cell_code_source"].astext() if "cell_code_source" in parts else ""
        outputs = parts.get("cell_code_output")
        if DRAWS.search(code) and (outputs is None or not list(outputs.findall(nodes.image))):
            raise ExtensionError(
                f"{page}: a cell plots and shows no picture; expected one (does the kernel use the inline "
                f"backend?):\n{code}")
    for image in doctree.findall(nodes.image):
        alt = image.get("alt", "").strip()
        if not alt or FILE.fullmatch(alt):
            raise ExtensionError(
                f"{page}: {image['uri']} has "
                f"{f'the alternative text {alt!r}' if alt else 'no alternative text'}; "
                                 "expected a sentence that says what the picture shows")


def setup(app: Sphinx) -> dict[str, bool]:
    """Check every page once it is read."""
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
