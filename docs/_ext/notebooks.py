"""Hand-outs: each tutorial and each homework as a notebook to download, with buttons that open it in a browser.

The notebooks are written into the finished site, beside the pages.  The buttons for Colab and JupyterLite need the
address of the repository and of the site: `hosted_repository` and `hosted_site` in ``conf.py``, and nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jupytext
import nbformat
from nbformat import v4

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INSTALL = """# Where the library is not installed yet, as on Colab: take the # away, with the wheel of your course.
# %pip install --quiet refsgd"""
COMMAND = re.compile(r"`(refsgd check [^`]+)`")
TIME = re.compile(r"^\*\*Time\*\*: about .*$", re.M)


def notebook(text: str, site: str = "") -> str:
    """A tutorial as an ordinary notebook: links to other tutorials lead to their notebooks, all others to the site, or
    become plain text where it has no address."""
    text = re.sub(r"(\]\(|\]: )(?!\.\./|https?:)([\w-]+)\.md", r"\1\2.ipynb", text)
    if site:
        text = re.sub(r"(\]\(|\]: )\.\./(?:docs/)?([\w/-]+)\.md", rf"\1{site.rstrip('/')}/\2.html", text)
    else:
        text = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text)
    found = jupytext.reads(text, fmt="md:myst")
    found.cells.insert(1, v4.new_code_cell(INSTALL))
    return written(found)


def homework(sheet: str, skeleton: str) -> str:
    """A homework as a notebook: the sheet, a cell that writes the file, and one for each command of the sheet."""
    cells = [v4.new_markdown_cell(sheet.strip()), v4.new_code_cell(INSTALL),
             v4.new_code_cell(f"%%writefile homework.py\n{skeleton.strip()}")]
    cells += [v4.new_code_cell(f"!{command}") for command in dict.fromkeys(COMMAND.findall(sheet))]
    return written(v4.new_notebook(cells=cells))


def written(found: Any) -> str:
    """A notebook without outputs as text; the same one for the same input."""
    for number, cell in enumerate(found.cells):
        cell.id = f"cell-{number}"
        if any(tag.startswith("hide") for tag in cell.metadata.get("tags", ())):  # a solution, folded here and in Colab
            cell.metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
    found.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.validate(found)
    return str(nbformat.writes(found)) + "\n"


def notebooks(root: Path, site: str = "") -> dict[str, str]:
    """All notebooks, by their place in the site."""
    found = {f"tutorials/{path.stem}.ipynb": notebook(path.read_text(encoding="utf-8"), site)
             for path in sorted((root / "tutorials").glob("*.md"))}
    for sheet in sorted((root / "docs" / "course" / "homework").glob("*/README.md")):
        found[f"course/homework/{sheet.parent.name}.ipynb"] = homework(
            sheet.read_text(encoding="utf-8"), sheet.with_name("skeleton.py").read_text(encoding="utf-8"))
    return found


def buttons(place: str, repository: str, site: str) -> str:
    """Links that open a notebook: a download, and where they have an address, Colab and JupyterLite."""
    name = place.rpartition("/")[2]
    found = [f'<a href="{name}" download>Download this page as a notebook</a>']
    if repository:
        found.append(f'<a href="https://colab.research.google.com/github/{repository}/blob/gh-pages/{quote(place)}">'
                     "Open in Colab</a>")
    if site:
        found.append(f'<a href="{site.rstrip("/")}/lite/lab/index.html?path={quote(name)}">Open in JupyterLite</a>')
    return f'<p class="notebook-links">{" · ".join(found)}</p>'


def add_buttons(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the links below the line with the time of a tutorial."""
    if docname.startswith("tutorials/"):
        links = buttons(f"{docname}.ipynb", app.config.hosted_repository, app.config.hosted_site)
        source[0] = TIME.sub(lambda line: f"{line[0]}\n\n{links}", source[0], count=1)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks into the finished site."""
    if error is None and app.builder.format == "html":
        for place, text in notebooks(Path(app.srcdir).parent, app.config.hosted_site).items():
            path = Path(app.outdir, place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the links to pages as they are read, and the notebooks to the site at the end."""
    app.add_config_value("hosted_repository", "", "env")
    app.add_config_value("hosted_site", "", "env")
    app.connect("source-read", add_buttons)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
