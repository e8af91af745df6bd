"""The slide decks of the course kit: a table of them, and their files beside its page when the site is built.

``{decks}`` lists them; ``docs/course/decks.py`` builds them, in a process of its own, after the pages.
"""

from __future__ import annotations

import html
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

COURSE = Path(__file__).parents[1] / "course"


def builder() -> ModuleType:
    """The module that reads and builds decks."""
    spec = importlib.util.spec_from_file_location("course_decks_builder", COURSE / "decks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Decks(SphinxDirective):
    """A row for each deck: its title, its length, its files."""

    def run(self) -> list[nodes.Node]:
        """The table, as HTML."""
        made = builder()
        rows = []
        for path in made.sources():
            self.env.note_dependency(str(path))
            deck = made.parse(path)
            pdf = f'<a href="decks/{deck.name}.pdf">PDF</a>' if made.chromium() else "print the HTML"
            rows.append(f"<tr><td>{html.escape(deck.slides[0].title)}</td><td>{len(deck.slides)}</td>"
                        f'<td><a href="decks/{deck.name}.html">HTML</a></td><td>{pdf}</td></tr>')
        head = "<tr><th>deck</th><th>slides</th><th></th><th></th></tr>"
        return [nodes.raw("", f'<table class="table"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>', format="html")]


def write(app: Sphinx, error: Exception | None) -> None:
    """Build the decks into the site, if it has the page that links to them."""
    if error or app.builder.format != "html" or "course/slides" not in app.env.found_docs:
        return
    done = subprocess.run([sys.executable, "-m", "docs.course.decks", str(Path(app.outdir) / "course" / "decks")],
                          cwd=COURSE.parents[1], env=os.environ | {"MPLBACKEND": "Agg"}, capture_output=True, text=True)
    if done.returncode:
        raise ExtensionError(f"the slide decks cannot be built: {done.stderr}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive, and build the decks when the pages are done."""
    app.add_directive("decks", Decks)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
