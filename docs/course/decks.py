"""Builds the slide decks: ``python -m docs.course.decks OUT [DECK ...]`` in a checkout.

A deck is one Markdown file in ``docs/course/decks/``.  Slides are separated by lines of three dashes and begin
with a title; a line ``Notes:`` begins the speaker's notes.  Blocks of ``python`` are executed and not shown: what
they print, and the figure that they leave, is.  Each figure has a text alternative, ``# alt: ...``, in the first line
of its block.  A deck becomes one HTML file without other files and, where there is a Chromium, a PDF.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent / "decks"
TEMPLATE = HERE / "template.html"
CODE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
ALT = re.compile(r"# alt: (.+)")


class Slide(NamedTuple):
    """One slide: Markdown with code in it, and the speaker's notes."""

    title: str
    body: str
    notes: str

    @property
    def code(self) -> list[str]:
        """The blocks that are executed."""
        return CODE.findall(self.body)


class Deck(NamedTuple):
    """A deck: the name of its file, and its slides."""

    name: str
    slides: list[Slide]


def parse(path: Path) -> Deck:
    """Read a deck's source."""
    slides = []
    for text in re.split(r"^---$\n", path.read_text(encoding="utf-8"), flags=re.M):
        shown, _, notes = text.strip().partition("\nNotes:")
        title, _, body = shown.partition("\n")
        if not title.startswith("# "):
            raise ValueError(f"{path.name}: a slide begins with {title!r}; expected '# ' and its title")
        slides.append(Slide(title[2:].strip(), body.strip(), notes.strip()))
    return Deck(path.stem, slides)


def sources() -> list[Path]:
    """The decks in the order of the course."""
    return sorted(HERE.glob("[0-9]*.md"))


def markdown(text: str) -> str:
    """Markdown as HTML, formulas as MathML."""
    from docutils.utils.math.latex2mathml import tex2mathml
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def formula(content: str, options: dict[str, Any]) -> str:
        return str(tex2mathml(content.strip(), as_block=options["display_mode"]))

    return str(MarkdownIt("commonmark", {"html": True}).enable("table").use(dollarmath_plugin, renderer=formula).render(text))


def listing(text: str) -> str:
    """Text in columns, in letters so small that its longest line fits on a slide."""
    size = min(1.6, 138 / max(map(len, text.splitlines())))
    return f'<pre style="--size: {size:.2f}">{html.escape(text)}</pre>'


def execute(code: str, names: dict[str, Any], where: str) -> str:
    """Run one block; what it printed and its figure, as HTML."""
    import matplotlib.pyplot as plt

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)
    found = listing(printed.getvalue()) if printed.getvalue() else ""
    if plt.get_fignums():
        said = ALT.match(code)
        if said is None:
            raise ValueError(f"{where}: a figure without a text alternative; expected '# alt: ...' in the block's first line")
        picture = io.BytesIO()
        plt.savefig(picture, format="svg")
        plt.close("all")
        data = base64.b64encode(picture.getvalue()).decode()
        found += f'<img alt="{html.escape(said[1])}" src="data:image/svg+xml;base64,{data}">'
    return f"\n\n{found}\n\n"


def render(deck: Deck) -> str:
    """The deck as one HTML page; its code runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 13, "figure.figsize": (10, 4.1), "figure.constrained_layout.use": True,
                         "svg.hashsalt": "refsgd", "axes.spines.top": False, "axes.spines.right": False})
    names: dict[str, Any] = {"__name__": "deck"}
    sections = []
    for number, slide in enumerate(deck.slides, 1):
        body, end = "", 0
        for block in CODE.finditer(slide.body):
            body += slide.body[end:block.start()] + execute(block[1], names, f"{deck.name}, slide {number}")
            end = block.end()
        body = markdown(body + slide.body[end:])
        level = "h1" if number == 1 else "h2"
        sections.append(f'<section id="s{number}"><div class="slide"><{level}>{markdown(slide.title)[3:-5]}</{level}>\n{body}'
                        f'<footer>{html.escape(deck.slides[0].title)} · {number}/{len(deck.slides)}</footer></div>\n'
                        f"<aside>{markdown(slide.notes)}</aside></section>")
    page = TEMPLATE.read_text(encoding="utf-8")
    return page.replace("{{title}}", html.escape(deck.slides[0].title)).replace("{{slides}}", "\n".join(sections))


def chromium() -> str | None:
    """A browser that prints, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def build(path: Path, out: Path) -> list[Path]:
    """Write a deck's HTML and, where there is a Chromium, its PDF; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    page = out / f"{path.stem}.html"
    page.write_text(render(parse(path)), encoding="utf-8")
    browser = chromium()
    if browser is None:
        return [page]
    pdf = page.with_suffix(".pdf")
    subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={pdf}",
                    page.resolve().as_uri()], check=True, capture_output=True, timeout=120)
    return [page, pdf]


def main(arguments: list[str]) -> None:
    """Build all decks, or those whose names begin as given."""
    if not arguments:
        sys.exit("usage: python -m docs.course.decks OUT [DECK ...]")
    out, *wanted = arguments
    for path in sources():
        if not wanted or path.stem.startswith(tuple(wanted)):
            print(*build(path, Path(out)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
