"""Every tutorial and homework as a notebook: valid, with the same code, and links that lead somewhere."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("jupytext", reason="needs jupytext: pip install '.[docs]'")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install '.[docs]'")
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from notebooks import TIME, buttons, notebook, notebooks  # noqa: E402

PLACES = notebooks(ROOT)
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?:---\n.*?^---\n)?(?::[^\n]*\n)*(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("place", PLACES)
def test_a_notebook_is_valid_and_its_links_lead_to_notebooks(place):
    found = nbformat.reads(PLACES[place], as_version=4)
    nbformat.validate(found)
    for cell in found.cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", cell.source):
                assert target.startswith("http") or f"tutorials/{target}" in PLACES, target
            assert "```{" not in cell.source and "{doc}" not in cell.source


@pytest.mark.parametrize("path", sorted((ROOT / "tutorials").glob("*.md")), ids=lambda path: path.stem[:2])
def test_a_notebook_has_the_code_of_its_tutorial(path):
    text = path.read_text(encoding="utf-8")
    cells = [cell.source for cell in nbformat.reads(PLACES[f"tutorials/{path.stem}.ipynb"], as_version=4).cells
             if cell.cell_type == "code"]
    assert cells[0].startswith("# Where the library is not installed") and TIME.search(text)
    assert [cell.strip() for cell in cells[1:]] == [code.strip() for code in CELL.findall(text)]


def test_solutions_are_folded():
    cells = nbformat.reads(PLACES["tutorials/04-asp-and-the-age-of-a-gradient.ipynb"], as_version=4).cells
    folded = [cell.source for cell in cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert folded and all(source.startswith("# Solution") for source in folded)


def test_a_homework_writes_its_skeleton_and_checks_it():
    cells = nbformat.reads(PLACES["course/homework/A-ssp.ipynb"], as_version=4).cells
    skeleton = (ROOT / "docs/course/homework/A-ssp/skeleton.py").read_text(encoding="utf-8").strip()
    assert [c.source for c in cells if c.cell_type == "code"][1:] == [
        f"%%writefile homework.py\n{skeleton}", "!refsgd check homework.py:homework --as ssp"]
    for place, text in PLACES.items():
        if place.startswith("course"):
            said = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
            given = (ROOT / "docs" / place).with_suffix("") / "skeleton.py"
            solution = set((given.with_name("solution.py")).read_text(encoding="utf-8").splitlines())
            new = solution - set(given.read_text(encoding="utf-8").splitlines()) - set(said.splitlines())
            assert len(new) > 1  # lines of the solution that the notebook does not have


def test_buttons_need_an_address():
    place = "tutorials/05-ssp-between-them.ipynb"
    assert buttons(place, "", "").count("<a ") == 1 and 'href="05-ssp-between-them.ipynb" download' in buttons(place, "", "")
    both = buttons(place, "someone/refsgd", "https://someone.example/refsgd/")
    assert "colab.research.google.com/github/someone/refsgd/blob/gh-pages/tutorials/05-ssp-between-them.ipynb" in both
    assert "https://someone.example/refsgd/lite/lab/index.html?path=05-ssp-between-them.ipynb" in both


def test_links_of_a_notebook_lead_to_the_site_if_it_has_an_address():
    text = "---\njupytext: {}\n---\n\n# T\n\nSee [BSP](../docs/algorithms/bsp.md), [next](02-two.md) and [it](https://a.b).\n"
    with_site, without = notebook(text, "https://s.example/r"), notebook(text)
    assert "[BSP](https://s.example/r/algorithms/bsp.html), [next](02-two.ipynb) and [it](https://a.b)" in with_site
    assert "See BSP, [next](02-two.ipynb) and" in without
