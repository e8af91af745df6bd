"""The slide decks and the homework of the course kit: tables of them, and their files in the site when it is built.

``{decks}`` and ``{homework}`` list them; ``docs/course/decks.py`` and ``docs/course/handout.py`` build them, in
processes of their own, after the pages.
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


def builder(name: str) -> ModuleType:
    """The module that reads and builds decks, or hand-outs."""
    spec = importlib.util.spec_from_file_location(f"course_{name}_builder", COURSE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Decks(SphinxDirective):
    """A row for each deck: its title, its length, its files."""

    def run(self) -> list[nodes.Node]:
        """The table, as HTML."""
        made = builder("decks")
        rows = []
        for path in made.sources():
            self.env.note_dependency(str(path))
            deck = made.parse(path)
            pdf = f'<a href="decks/{deck.name}.pdf">PDF</a>' if made.chromium() else "print the HTML"
            rows.append(f"<tr><td>{html.escape(deck.slides[0].title)}</td><td>{len(deck.slides)}</td>"
                        f'<td><a href="decks/{deck.name}.html">HTML</a></td><td>{pdf}</td></tr>')
        head = "<tr><th>deck</th><th>slides</th><th></th><th></th></tr>"
        return [nodes.raw("", f'<table class="table"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>', format="html")]


class Homework(SphinxDirective):
    """A row for each homework: its task, its time, and what students and graders get."""

    def run(self) -> list[nodes.Node]:
        """The table, which is Markdown."""
        made = builder("handout")
        kind = "pdf" if made.decks.chromium() else "html"
        rows = ["| homework | time | for students | for you |", "|---|---|---|---|"]
        for folder in made.sources():
            here = f"../course/homework/{folder.name}"
            for name in ("README.md", "rubric.md"):
                self.env.note_dependency(str(folder / name))
            found = made.read(folder)
            files = ", ".join(f'<a href="{here}{place}" download>{said}</a>' for said, place in (
                ("skeleton", "/skeleton.py"), ("submit.py", "/submit.py"), ("notebook", ".ipynb")))
            rows.append(f'| {found.title.removeprefix("Homework ")} | {found.time.replace("minutes", "min")} | <a href="{here}/handout.{kind}">hand-out</a>, {files} | '
                        f"{{download}}`hidden tests <{here}/hidden_test.py>`, {{download}}`rubric <{here}/rubric.md>`, "
                        f"{{download}}`sheet <{here}/README.md>` |")
        return list(self.parse_text_to_nodes("\n".join(rows)))


def write(app: Sphinx, error: Exception | None) -> None:
    """Build decks and hand-outs into the site, if it has the pages that link to them."""
    if error or app.builder.format != "html":
        return
    for page, name, folder in (("course/slides", "decks", "decks"), ("howto/course", "handout", "homework")):
        if page in app.env.found_docs:
            done = subprocess.run([sys.executable, "-m", f"docs.course.{name}", str(Path(app.outdir) / "course" / folder)],
                                  cwd=COURSE.parents[1], env=os.environ | {"MPLBACKEND": "Agg"}, capture_output=True, text=True)
            if done.returncode:
                raise ExtensionError(f"the {folder} of the course cannot be built: {done.stderr}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives, and build the files when the pages are done."""
    app.add_directive("decks", Decks)
    app.add_directive("homework", Homework)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
