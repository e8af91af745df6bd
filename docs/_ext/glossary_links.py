"""Links the first use of each word of the glossary on a page to its entry.

Everyday words that are also entries are left alone, and so are titles, links, code and captions.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

EVERYDAY = {"alpha", "beta", "gamma", "W", "main", "cores", "effect", "idle", "iteration", "period", "program", "pull",
            "push", "schedule", "trace", "update"}
UNTOUCHED = (nodes.reference, pending_xref, nodes.literal, nodes.title, nodes.caption, nodes.term, nodes.raw, nodes.math,
             nodes.literal_block, nodes.table)
FOLDERS = ("tutorials/", "algorithms/", "explanation/", "howto/")


def words(glossary: str) -> dict[str, str]:
    """What a page may say -> the entry: "bulk-synchronous" -> "bulk-synchronous (BSP)"."""
    block = glossary.partition("```{glossary}\n")[2].partition("```")[0]
    entries = [line for line in block.splitlines() if line and not line.startswith(" ")]
    return {word: entry for entry in entries for word in entry.partition(" (")[0].split(", ") if word not in EVERYDAY}


def link(doctree: nodes.document, known: dict[str, str], page: str) -> None:
    """Replace the first use of each word by a reference to its entry."""
    left = dict(known)
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(known, key=len, reverse=True)))})s?(?![\w-])", re.I)
    for text in list(doctree.findall(nodes.Text)):
        ancestors, node = [], text
        while node.parent is not None:
            node = node.parent
            ancestors.append(node)
        inside = any(isinstance(a, nodes.paragraph) for a in ancestors)
        if not left or not inside or any(isinstance(a, UNTOUCHED) for a in ancestors):
            continue
        parts: list[nodes.Node] = []
        rest = str(text)
        while match := next((m for m in pattern.finditer(rest) if m[1].lower() in left), None):
            xref = pending_xref("", nodes.inline("", match[0], classes=["glossary-word"]), refdomain="std", reftype="term",
                                reftarget=left.pop(match[1].lower()), refexplicit=True, refwarn=True, refdoc=page)
            parts += [nodes.Text(rest[:match.start()]), xref]
            rest = rest[match.end():]
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(rest)])


def setup(app: Sphinx) -> dict[str, bool]:
    """Link the pages of the folders once they are read; not the glossary itself."""
    glossary = Path(app.srcdir) / "explanation" / "glossary.md"
    known = words(glossary.read_text(encoding="utf-8")) if glossary.exists() else words("")

    def on_read(app: Sphinx, doctree: nodes.document) -> None:
        page = app.env.docname
        if page.startswith(FOLDERS) and not page.endswith(("glossary", "/index")):
            link(doctree, known, page)

    app.connect("doctree-read", on_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
