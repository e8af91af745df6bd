"""The documentation site: what its pages name exists, and what it does to sources before it reads them is
right."""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cli import parsed
from tests.test_style import ARROWS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

from exchange_table import COLUMNS, table  # noqa: E402
from tutorials_in_docs import bring, for_the_site  # noqa: E402

PAGES = [p for folder in ("howto", "explanation", "algorithms", "course") for p in sorted((DOCS / folder).glob("*.md"))]
PAGES += [*sorted(DOCS.glob("*.md")), *sorted((ROOT / "tutorials").glob("*.md"))]


def commands(text):
    """The lines of fenced blocks that call ``refsgd``, without what follows a pipe or a comment."""
    blocks = re.findall(r"^```(?:console|bash|sh)?\n(.*?)^```", text, re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:^|&& |srun \S+ |mpiexec .*?)(refsgd .*)", line) for line in lines]
    return [shlex.split(m[1].replace("$SLURM_JOB_ID", "1"), comments=True) for m in found if m]


def commands_in_sentences(text):
    """Calls of ``refsgd`` with arguments that stand in a sentence; those with an ellipsis are no whole
    ones."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).replace("\n", " ")
    return [shlex.split(line) for line in re.findall(r"`(refsgd \w+ [^`]*)`", prose) if "..." not in line]


def definitions(text):
    """The imports, classes and functions of a page's code, which its reader has in a file."""
    cells = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```", text, re.M | re.S)
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    return "\n".join(ast.unparse(node) for node in ast.parse("\n".join(cells)).body if isinstance(node, kept))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_of_pages_are_those_of_the_program(page, tmp_path, monkeypatch):
    text = page.read_text()
    if page.stem == "own-algorithm":
        (tmp_path / "mine.py").write_text(definitions(text))
        monkeypatch.chdir(tmp_path)
    for _, *words in commands(text) + commands_in_sentences(text):
        parsed(words)


def test_the_two_digits_of_a_short_fraction_are_two_numbers():
    nodes = pytest.importorskip("docutils.nodes")
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install '.[docs]'")
    from mathml import mathml
    for formula, parts in ((r"\frac12 x^2", ["1", "2", "2"]), (r"1 + \tfrac7{16}", ["1", "7", "16"])):
        assert re.findall("<mn>(.*?)</mn>", mathml(nodes.math(formula, formula))) == parts


def test_the_check_of_commands_catches_a_wrong_option():
    found = commands("```console\nmpiexec -n 5 refsgd run ssp --slack 3\n```\n")
    assert found == [["refsgd", "run", "ssp", "--slack", "3"]] == commands_in_sentences(
        "say `refsgd run\nssp --slack 3`, not `refsgd run ... --json`")
    with pytest.raises(SystemExit):
        parsed(found[0][1:])


def cited(doc):
    """(first author, year) of each work in a References section that is written as: authors, "title", ...
    year."""
    text = " ".join(doc.partition("References\n---")[2].split("\n\n")[0].split("\n")[1:])
    pieces = re.sub(r"arXiv:\S+|doi:\S+", "", text).split('"')
    for before, after in zip(pieces[::2], pieces[2::2]):
        author = re.match(r"[\w-]+", re.split(r"[.;:] +(?=[A-Z])", before)[-1].strip())
        year = re.search(r"\b(?:19|20)\d\d\b", after)
        if author and year:
            yield author[0], year[0]


def test_citations_are_found():
    doc = (
        'References\n----------\nHo et al., "More", NIPS 2013, section 2: rules.  Dai et al., '
        '"High",\narXiv:1410.8043, AAAI 2015.\n\nmore')
    assert list(cited(doc)) == [("Ho", "2013"), ("Dai", "2015")]
    named = "Ho et al. 2013: the gate; Levin and May 1976 (Sanders, Speck, Traeff 2009)"
    assert NAMED.findall(named) == [("Ho", "2013"), ("Levin", "1976"), ("Sanders", "2009")]


#: a work by its author or authors and its year: Ho et al. 2013, Levin and May 1976
NAMED = re.compile(r"\b((?:Mc)?[A-Z][a-z]+)(?: et al\.| and\s+[A-Z]\w+(?: [A-Z]\w+)?|(?:, [A-Z]\w+)+)?\s((?:19|20)\d\d)\b")


def test_works_that_modules_cite_are_in_the_bibliography():
    """Or, of a new algorithm, on its page with a link."""
    entries = (DOCS / "references.bib").read_text()
    known = {(author.lower(), year) for author, year in re.findall(r"^@\w+\{([a-z]+)(\d{4}),", entries, re.M)}
    works = {}
    for path in sorted(p for room in ("algorithms", "collectives", "theory")
                       for p in (ROOT / "refsgd" / room).rglob("*.py")):
        page = DOCS / "algorithms" / f"{path.stem.replace('_', '-')}.md"
        linked = re.findall(r"^.*\]\(https://.*$", page.read_text() if page.exists() else "", re.M)
        for author, year in cited(path.read_text()):
            if not any(author in words and year in words for words in linked):
                works[author.lower(), year] = path.name
    for path in (ROOT / "refsgd" / "theory").rglob("*.py"):  # sources and docstrings name authors and year
        for author, year in NAMED.findall(path.read_text()):
            works[author.lower(), year] = path.name
    assert len(works) > 90
    assert {work: page for work, page in works.items() if work not in known} == {}


def test_every_entry_has_the_key_of_its_first_author_and_year():
    for key, author, year in re.findall(r"^@\w+\{(\w+), author = \{([^,]+),.*?year = \{(\d{4})\}",
                                        (DOCS / "references.bib").read_text(), re.M):
        plain = re.sub(r"\\.|[{}\s]", "", author).lower()
        assert key == plain + year, (key, author, year)


def test_links_of_tutorials_fit_their_place_in_the_site():
    assert for_the_site(
        "see [ASP](../docs/algorithms/asp.md#facts) and [next](02-next.md)") == "see [ASP](../algorithms/asp.md#facts) and [next](02-next.md)"


def test_tutorials_are_brought_in_only_where_they_changed(tmp_path):
    source, target = tmp_path / "tutorials", tmp_path / "docs" / "tutorials"
    source.mkdir()
    (source / "02-b.md").write_text("# B\n")
    (source / "01-a.md").write_text("# A\n")
    assert sorted(bring(source, target)) == ["01-a.md", "02-b.md", "index.md"]
    assert "01-a\n02-b\n" in (target / "index.md").read_text()
    assert bring(source, target) == []
    (source / "01-a.md").unlink()
    (source / "index.md").write_text("# Ours\n")
    assert sorted(bring(source, target)) == ["01-a.md", "index.md"]
    assert (target / "index.md").read_text() == "# Ours\n" and not (target / "01-a.md").exists()


PLOT = """---
file_format: mystnb
kernelspec: {name: python3, display_name: Python 3}
---
# A page

```{code-cell} ipython3
:mystnb: {image: {alt: "%s"}}
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
```
"""


def build(folder, alt, backend, *options):
    """Exit code and last words of a build of one page that plots; `options` name the configuration."""
    pytest.importorskip("myst_nb", reason="Sphinx builds pages with code: pip install '.[docs]'")
    source = folder / "docs"
    source.mkdir()
    (source / "index.md").write_text(PLOT % alt)
    env = os.environ | {"MPLBACKEND": backend, "PYTHONPATH": str(DOCS / "_ext")}
    done = subprocess.run([sys.executable, "-m", "sphinx", "-q", *options, str(source), str(folder / "out")],
                          env=env, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("alt", "backend", "flaw"), [
    ("A line that rises.", "agg", "index: a cell plots and shows no picture"),
    ("", "inline", "no alternative text"),
    ("out/line.png", "inline", "has the alternative text 'out/line.png'"),
])
def test_a_picture_that_is_missing_or_without_a_text_fails_the_build(tmp_path, alt, backend, flaw):
    code, said = build(tmp_path, alt, backend, "-C", "-b", "dummy", "-D", "extensions=myst_nb,pictures")
    assert code and flaw in said


@pytest.mark.slow
def test_pages_have_their_pictures_whatever_backend_the_caller_sets(tmp_path):
    code, said = build(tmp_path, "A line that rises.", "agg", "-c", str(DOCS), "-D", "autosummary_generate=0",
                       "-D", "bibtex_bibfiles=")
    assert not code and "encryption" not in said, said
    assert re.search(r'<img [^>]*alt="A line that rises\."', (tmp_path / "out" / "index.html").read_text())


def test_continuous_integration_builds_the_site_as_the_readme_says():
    build, = re.findall(r"&& (sphinx-build [^`]*)`", (ROOT / "README.md").read_text())
    lines = re.findall(r"^(?:\(time )?(sphinx-build [^)>]+?)\)? ?2?>", (ROOT / ".ci" / "run").read_text(), re.M)
    assert build == "sphinx-build -b html docs site"
    assert build in lines, "expected the README's line in .ci/run"


class Source:
    """A default as Sphinx's autodoc puts it into a signature: its text."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return repr(self.value)


@pytest.mark.parametrize(("name", "data"), [("allreduce", "quadratic"), ("ssp", "quadratic"), ("gpipe", "digits")])
def test_a_run_is_the_same_after_a_documentation_tool_replaced_the_signature(name, data, monkeypatch):
    """Pages train in the process that documents: `autodoc_preserve_defaults` changes the functions that run."""
    def run():
        return refsgd.run(name, data=data, workers=2, steps=2).schedule_sha256

    function, before = CATALOGUE[name], run()
    signature = inspect.signature(function)
    quoted = [p if p.default is p.empty else p.replace(default=Source(p.default)) for p in signature.parameters.values()]
    monkeypatch.setattr(function, "__signature__", signature.replace(parameters=quoted), raising=False)
    assert any(isinstance(p.default, Source) for p in inspect.signature(function).parameters.values())
    assert run() == before


def test_the_first_use_of_a_word_leads_to_the_glossary():
    """Not in a title, not inside another link or code, and once for each entry."""
    pytest.importorskip("sphinx", reason="Sphinx builds the site: pip install '.[docs]'")
    from docutils import nodes, utils
    from glossary_links import link, words

    known = words((DOCS / "explanation" / "glossary.md").read_text())
    assert known["bulk-synchronous"] == "bulk-synchronous (BSP)" and known["handler"] == "main, handler" and "update" not in known
    page = utils.new_document("page")
    page += nodes.title("", "", nodes.Text("Staleness"))
    page += nodes.paragraph("", "", nodes.literal("", "lead"), nodes.Text(" Stragglers raise the staleness; a straggler misleads."))
    page += nodes.paragraph("", "", nodes.Text("Staleness and a lead."))
    link(page, known, "tutorials/05")
    assert [(n.astext(), n["reftarget"]) for n in page.findall() if n.__class__.__name__ == "pending_xref"] == [
        ("Stragglers", "straggler"), ("staleness", "staleness"), ("lead", "lead")]
    assert page.astext().split("\n\n")[1:] == ["lead Stragglers raise the staleness; a straggler misleads.", "Staleness and a lead."]


def test_the_table_of_exchanges_covers_the_catalogue():
    """What a row says is what a run does: an option that it grants is taken, another is refused."""
    found = {cells[0].strip("`"): cells[1:] for cells in
             ([cell.strip() for cell in line.strip("|\n").split("|")] for line in table().splitlines()[2:])}
    assert list(found) == list(CATALOGUE)
    for name, (*cells, why) in found.items():
        for options, cell in zip(COLUMNS, cells, strict=True):
            granted = [option for option in options if not facts_of(CATALOGUE[name]).refusal(option)]
            assert bool(cell) == bool(granted)
            assert all(facts_of(CATALOGUE[name]).refusal(option) in why for option in options if option not in granted)
    assert found["bsp"][:4] == ["yes", "backward, both", "", "yes"] and found["dgc"][1:4] == ["backward", "yes", ""]
    assert found["downpour"][1] == "backward" and "do not wait for the answer" in found["downpour"][4]
    assert found["gosgd"][:4] == [""] * 4 and found["gosgd"][4].startswith("it exchanges parameters")


# -- the page of the design ----------------------------------------------------------------------------------

DESIGN = (DOCS / "explanation" / "design.md").read_text()


def cells_of(text, heading):
    """The cells of each row of the table under a heading."""
    rows = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in rows.splitlines() if line.startswith("| ")][1:]


def allowed(text):
    """Room -> the rooms that it may import, as the table of rooms words it."""
    found, above = {}, []
    for names, may, _ in cells_of(text, "The rooms"):
        rooms = re.findall(r"`(\w+)`", names)
        everything, but = may.startswith(("all", "everything")), set(may.partition(" but ")[2].split(", "))
        imported = {*above} - but if everything else {*may.split(", ")} - {"nothing"}
        found |= dict.fromkeys(rooms, imported)
        above += rooms
    return found


def misplaced(text):
    """Files and names in the table of places that do not exist."""
    for _, answer in cells_of(text, "Where does it happen?"):
        words = re.findall(r"`([^`]+)`", answer)
        files = [ROOT / "refsgd" / word for word in words if word.endswith(".py")]
        yield from (file.name for file in files if not file.exists())
        yield from (word for word in words if word.endswith("/") and not (ROOT / "refsgd" / word).is_dir())
        source = "".join(file.read_text() for file in files if file.exists())
        yield from (word for word in words if re.fullmatch(r"[\w.]+", word) and not word.endswith(".py")
                    and not re.search(rf"(?:def|class) {word.rpartition('.')[2]}\b", source))


def test_the_page_of_the_design_has_the_arrows_and_the_places_of_the_code():
    arrows = {room: to - {"", "_version"} for room, to in ARROWS.items() if room != "_version"}
    assert {room: to for room, to in allowed(DESIGN).items() if room != "cli"} == arrows
    assert len(cells_of(DESIGN, "Where does it happen?")) > 15 and list(misplaced(DESIGN)) == []


def test_the_check_of_the_design_finds_a_wrong_arrow_and_a_wrong_place():
    assert allowed(DESIGN.replace("| `theory` | cluster, trace |", "| `theory` | trace |"))["theory"] == {"trace"}
    assert list(misplaced(DESIGN.replace("`trace/metrics.py`", "`trace/counts.py`"))) == ["counts.py"]
    assert list(misplaced(DESIGN.replace("`Engine.act`", "`Engine.interpret`"))) == ["Engine.interpret"]
