"""Formulas as MathML, made when the pages are built: every browser shows them, without a script and
without the network."""

import html
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block) -> str:
    """A formula as MathML; what docutils does not know is shown as it was written, with a warning."""
    text = node.astext().replace(r"\dots", r"\ldots")
    text = re.sub(r"frac(\d)(?=\d)", r"frac{\1}", text)  # docutils reads the two digits of \frac12 as a number
    try:
        return tex2mathml(text, as_block=isinstance(node, nodes.math_block))
    except MathError as error:
        LOG.warning("formula %s: %s", text, error, location=node)
        return f"<code>{html.escape(text)}</code>"


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """A formula in a sentence."""
    self.body.append(mathml(node))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    self.body.append(self.starttag(node, "div", CLASS="formula"))
    self.body.append(mathml(node))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the renderer; ``html_math_renderer = "mathml"`` chooses it."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
