"""Builds the slide decks: ``python -m docs.course.decks OUT [DECK ...]`` in a checkout.

A deck is one Markdown file in ``docs/course/decks/``.  Slides are separated by lines of three dashes and begin
with a title; a line ``Notes:`` begins the speaker's notes.  Blocks of ``python`` are executed and not shown: the figure
that they leave is, and below it what they print, as Markdown.  Each figure has a text alternative, ``# alt: ...``, in the
first line of its block.  Blocks may call `table`, `source`, `drawn` and `sketch`.  No letter is smaller than 20 pixels of
a slide that is 1280 wide.  A deck becomes one HTML file without other files and, where there is a Chromium, a PDF.
"""

from __future__ import annotations

import base64
import contextlib
import html
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

HERE = Path(__file__).parent / "decks"
TEMPLATE = HERE / "template.html"
CODE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
ALT = re.compile(r"# alt: (.+)")
WIDTH = 1152  #: of what a slide of 1280 pixels shows between its margins
SMALLEST = 20  #: letters on such a slide, in pixels
LINES, COLUMNS = 12, 93  #: of code that fits on a slide, in letters of that size


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


def table(head: Sequence[object], *rows: Sequence[object]) -> str:
    """A table, as Markdown; the first column holds names, the others mostly numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def source(function: Callable[..., object], first: str, last: str) -> str:
    """The lines of a function from the first one with one text to the next with another, as Markdown: without comments, and
    folded where they are wider than a slide."""
    lines = [code for line in inspect.getsource(function).splitlines() if (code := re.sub(r"\s*#.*", "", line)).strip()]
    start = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if i >= start and last in line)
    shown = textwrap.dedent("\n".join(lines[start:end + 1])).splitlines()
    folded = [textwrap.fill(line, COLUMNS, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 8)) for line in shown]
    return "\n".join(["```", *folded, "```"])


def legible(page: str, where: str) -> str:
    """The HTML of a slide, its code in letters as large as fit; refuses code that would need smaller ones than `SMALLEST`."""
    def sized(code: re.Match[str]) -> str:
        lines = html.unescape(re.sub(r"<[^>]+>", "", code[1])).splitlines()
        wide = max(map(len, lines))
        if len(lines) > LINES or wide > COLUMNS:
            raise ValueError(f"{where}: {len(lines)} lines of code, up to {wide} characters wide; expected at most {LINES} "
                             f"lines of {COLUMNS}: a figure, a table or an excerpt")
        return f'<pre style="--letters: {min(1.5, COLUMNS / wide):.2f}">{code[1]}</pre>'

    return re.sub(r"<pre>(.*?)</pre>", sized, page, flags=re.S)


def figure(alt: str, where: str) -> str:
    """Pyplot's figure as HTML; refuses small letters."""
    import matplotlib.pyplot as plt

    picture, width = io.StringIO(), 72 * plt.gcf().get_figwidth()
    plt.savefig(picture, format="svg")
    plt.close("all")
    points = min(100 * float(size) for size in re.findall(r"scale\(([\d.]+) -", picture.getvalue()))
    if points * WIDTH / width < SMALLEST:
        raise ValueError(f"{where}: a figure with letters of {points * WIDTH / width:.0f} pixels; expected at least {SMALLEST}")
    data = base64.b64encode(picture.getvalue().encode()).decode()
    return f'<img alt="{html.escape(alt)}" data-letters="{points / width:.5f}" src="data:image/svg+xml;base64,{data}">'


def execute(code: str, names: dict[str, Any], where: str) -> str:
    """Run one block; its figure and what it printed, as Markdown."""
    import matplotlib.pyplot as plt

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)
    if not plt.get_fignums():
        return f"\n\n{printed.getvalue()}\n\n"
    said = ALT.match(code)
    if said is None:
        raise ValueError(f"{where}: a figure without a text alternative; expected '# alt: ...' in the block's first line")
    return f"\n\n{figure(said[1], where)}\n\n{printed.getvalue()}\n\n"


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Figures in letters of one size, legible from the last row, and in the colours of the library's plots."""
    import matplotlib as mpl
    from matplotlib.font_manager import font_scalings

    from refsgd.display.plots.colors import PALETTE

    mpl.use("Agg")
    relative = dict.fromkeys(("xx-small", "x-small", "small"), 1.0)
    with mock.patch.dict(font_scalings, relative), mpl.rc_context({
            "font.size": 14, "axes.titlesize": 14, "figure.figsize": (10, 4.2),
            "figure.constrained_layout.use": True, "svg.hashsalt": "refsgd", "axes.spines.top": False,
            "axes.spines.right": False, "axes.prop_cycle": mpl.cycler(color=PALETTE[1:]), "lines.linewidth": 2.2,
            "legend.frameon": False}):
        yield


@style()
def render(deck: Deck) -> str:
    """The deck as one HTML page; its code runs."""
    from docs._ext.node_drawing import drawn, sketch

    names: dict[str, Any] = {"__name__": "deck", "table": table, "source": source, "drawn": drawn, "sketch": sketch}
    sections = []
    for number, slide in enumerate(deck.slides, 1):
        body, end, where = "", 0, f"{deck.name}, slide {number}"
        for block in CODE.finditer(slide.body):
            body += slide.body[end:block.start()] + execute(block[1], names, where)
            end = block.end()
        body = legible(markdown(body + slide.body[end:]), where)
        level = "h1" if number == 1 else "h2"
        sections.append(f'<section id="s{number}"><div class="slide"><{level}>{markdown(slide.title)[3:-5]}</{level}>\n{body}'
                        f'<footer>{html.escape(deck.slides[0].title)} · {number}/{len(deck.slides)}</footer></div>\n'
                        f"<aside>{markdown(slide.notes)}</aside></section>")
    page = TEMPLATE.read_text(encoding="utf-8")
    return page.replace("{{title}}", html.escape(deck.slides[0].title)).replace("{{slides}}", "\n".join(sections))


def chromium() -> str | None:
    """A browser that prints, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def printed(page: Path) -> list[Path]:
    """Print a page where there is a Chromium; returns its PDF, if any."""
    browser = chromium()
    if browser is None:
        return []
    pdf = page.with_suffix(".pdf")
    with TemporaryDirectory() as folder:  # Chromium leaves files of its own there
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={pdf}",
                        page.resolve().as_uri()], check=True, capture_output=True, timeout=120, env={**os.environ, "TMPDIR": folder})
    return [pdf]


def build(path: Path, out: Path) -> list[Path]:
    """Write a deck's HTML and, where there is a Chromium, its PDF; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    page = out / f"{path.stem}.html"
    page.write_text(render(parse(path)), encoding="utf-8")
    return [page, *printed(page)]


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
