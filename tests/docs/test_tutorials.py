"""Tutorials run from a fresh kernel to their end, solutions included; and each has what a reader may
expect."""

import re
import sys
import time
from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.md"))
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from tutorials_in_docs import ABOUT, table  # noqa: E402

CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.M | re.S)
BUSY = "real computing overran its drawn times|leaves room for"  # what a run says on a busy machine
SECONDS = 240  # the index and course/plans.md say "up to four minutes"


def cells(text):
    """(options, code) of every code cell: options are the lines between ``---`` or those that begin with
    ``:``."""
    found = []
    for body in CELL.findall(text):
        match = re.match(r"---\n(.*?)---\n|((?::[^\n]*\n)*)", body, re.S)
        found.append((match[1] or match[2] or "", body[match.end():].strip()))
    return found


def solutions(text):
    """Code of the cells that a page folds and a notebook runs."""
    return [code for options, code in cells(text) if "hide-cell" in options and code.startswith("# Solution")]


def flaws(text):
    """What a tutorial lacks, in words."""
    found = []
    front = re.match(r"---\n(.*?)\n---\n\n# \d+\. \S", text, re.S)
    if not front:
        found.append("front matter and a numbered title")
    elif "format_name: myst" not in front[1] or "name: python3" not in front[1]:
        found.append("front matter that names the format and the kernel")
    for heading in ("Exercises", "Summary", "Read on"):
        if text.count(f"\n## {heading}\n") != 1:
            found.append(f"one section {heading}")
    summary = re.search(r"\n## Summary\n(.*?)\n## Read on\n", text, re.S)
    parts = re.findall(r"^\*\*([^*]+)\.\*\*", summary[1], re.M) if summary else []
    if parts != ["What you saw", "The formula", "Where it holds", "To take home"] or "$$" not in summary[1]:
        found.append("a summary with its formula at the end")
    body, _, rest = text.partition("\n## Exercises\n")
    if "You will see" not in body:
        found.append("a word on what the reader will see")
    if "> **Predict.**" not in body:
        found.append("a question to answer before running")
    exercises = [int(n) for n in re.findall(r"^\*\*(\d)\.\*\* ", rest, re.M)]
    if len(exercises) < 3 or exercises != list(range(1, len(exercises) + 1)):
        found.append("three or more exercises, numbered")
    if len(solutions(rest)) != len(exercises):
        found.append("a folded solution in a code cell for each exercise")
    if len(CELL.findall(text)) != text.count("```{code-cell}"):
        found.append("cells that are closed and say ipython3")
    return found


def test_there_are_tutorials_numbered_from_1():
    assert len(TUTORIALS) >= 14
    assert [int(p.name[:2]) for p in TUTORIALS] == list(range(1, len(TUTORIALS) + 1))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_a_tutorial_has_a_title_predictions_and_exercises_with_folded_solutions(path):
    assert flaws(path.read_text()) == []


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_every_code_cell_is_python(path):
    for _, code in cells(path.read_text()):
        compile(code, path.name, "exec")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_letters_of_figures_can_be_read(path):
    """A page is 745 pixels wide: in a figure of 8.5 inches letters of 8 points are nearly 10 pixels high."""
    assert not [w for w in re.findall(r"figsize=\(([\d.]+),", path.read_text()) if float(w) > 8.5]


def leads_somewhere(target, here):
    """Whether a link does in the repository, or (beginning with ``../``) in the site, where tutorials stand
    beside the other pages.

    The page of an algorithm may be written by the build.
    """
    page = Path(target)
    if page.parent.name == "algorithms":
        return target.startswith("../docs/") and (page.stem == "index" or page.stem in CATALOGUE)
    return (here / target).exists() or (target.startswith("../") and (ROOT / "docs" / target[3:]).exists())


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_links_to_other_pages_lead_somewhere(path):
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", CELL.sub("", path.read_text()))
    assert targets and not [t for t in targets if not leads_somewhere(t, path.parent)]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_every_work_to_read_on_has_a_link(path):
    """A title in italics is the text of a link."""
    assert re.findall(r"(?<![\[*\w])\*(?! )[^*]+\*(?![\]*])", path.read_text().partition("\n## Read on\n")[2]) == []


def test_a_dead_link_is_found():
    here = ROOT / "tutorials"
    # else dead in Jupyter
    assert leads_somewhere("../docs/algorithms/bsp.md",
                           here) and not leads_somewhere("../algorithms/bsp.md", here)
    assert not leads_somewhere("../docs/algorithms/bps.md",
                               here) and not leads_somewhere("00-none.md",
                                                             here) and not leads_somewhere("../none.md", here)


@pytest.mark.parametrize(("wrong", "lack"), [
    (("tags: [hide-cell]", "tags: []"), "a folded solution"),
    (("# Solution 1\n", ""), "a folded solution"),
    (("\n# 1. ", "\n# "), "numbered title"),
    (("**2.** ", "**7.** "), "exercises, numbered"),
    (("format_name: myst", "format_name: percent"), "names the format"),
    (("> **Predict.** ", "> "), "before running"),
    (("{code-cell} ipython3", "{code-cell}"), "say ipython3"),
    (("**Where it holds.**", "Where it holds:"), "a summary with its formula"),
])
def test_a_flaw_is_found(wrong, lack):
    text = TUTORIALS[0].read_text()
    broken = text.replace(*wrong)
    assert broken != text and any(lack in flaw for flaw in flaws(broken))


def executed(path):
    """The notebook with its outputs, run in a kernel of its own that finds this checkout."""
    read = pytest.importorskip("myst_nb.core.read",
                               reason="myst-nb reads MyST notebooks: pip install '.[docs]'")
    nbclient = pytest.importorskip("nbclient", reason="nbclient runs notebooks: pip install '.[docs]'")
    notebook = read.read_myst_markdown_notebook(path.read_text())
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                            resources={"metadata": {"path": str(path.parent)}}).execute()
    return notebook


def written(cell):
    """All text that a cell printed or showed."""
    return "".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in cell.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_a_tutorial_runs_from_a_fresh_kernel(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    began = time.perf_counter()
    notebook = executed(path)
    assert time.perf_counter() - began < SECONDS
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code if cell.source.strip())
    stderr = "".join(o.text for cell in code for o in cell.outputs if o.output_type == "stream"
                     and o.name == "stderr")
    assert not [line for line in stderr.splitlines() if re.search("Traceback|Warning", line)
                and not re.search(BUSY, line)]
    assert not [cell.source for cell in code if "Traceback (most recent" in written(cell)]
    ran = [cell.source.strip() for cell in code]
    assert all(solution in ran for solution in solutions(path.read_text()))


@pytest.mark.long
@pytest.mark.parametrize("path", [p for p in TUTORIALS if '"processes"' in p.read_text()], ids=lambda p: p.stem)
def test_run_all_reaches_the_end_without_fork(path, monkeypatch, tmp_path):
    """On Windows or in a browser: cells with processes are simulated, and one line says so."""
    startup = tmp_path / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "no_fork.py").write_text(
        "import multiprocessing\nmultiprocessing.get_all_start_methods = lambda: ['spawn']\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert "simulated instead" in "".join(o.get("text", "") for cell in executed(path).cells
                                          for o in cell.get("outputs", []))


@pytest.mark.slow
def test_a_failing_cell_fails_the_test(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    page = tmp_path / "wrong.md"
    head = TUTORIALS[0].read_text().split("\n# ")[0]
    page.write_text(head + "\n# 1. Wrong\n\n```{code-cell} ipython3\n1 / 0\n```\n")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        executed(page)


def test_each_tutorial_says_its_objectives_prerequisites_time_and_level():
    """In one form, from which the site's table is made."""
    assert [path.name for path in TUTORIALS if not ABOUT.search(path.read_text())] == []
    assert [path.name for path in TUTORIALS if "**You will see** " not in path.read_text()] == []
    rows = table({path.name: path.read_text() for path in TUTORIALS}).splitlines()
    assert len(rows) == 2 + len(TUTORIALS) and all(row.count("|") == 5 for row in rows)


def test_a_tutorial_without_its_time_is_noticed():
    text = TUTORIALS[0].read_text()
    assert not ABOUT.search(text.replace("minutes with", "min with")) and table({"a.md": "# A"}) == ""
