"""What pages and the README say of the project is so."""

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE, FAMILIES
from refsgd.collectives import ALLREDUCE

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_table_of_invariants_names_exists():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "invariants.md").read_text())
    assert len(named) > 40
    missing = [f"{path}::{name}" for path, name in named
               if f"def {name}(" not in (ROOT / "tests" / path).read_text()]
    assert not missing


def test_every_test_that_the_list_of_pitfalls_names_exists():
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "pitfalls.md").read_text())
    assert len(named) > 30
    assert not [path for path in named if not (ROOT / "tests" / path).exists()]


def absent(text):
    """Paths of the library or of its tests that a page names and that do not exist."""
    named = re.findall(r"`((?:refsgd|tests|benchmarks)/[\w/.-]*[\w/])`", text)
    return [path for path in named if not (ROOT / path).exists() and "growing" not in path]  # the trial's


NAMING = [ROOT / "README.md", *sorted((ROOT / "tutorials").glob("*.md")), *sorted(
    page for page in (ROOT / "docs").rglob("*.md") if not {"jupyter_execute", "tutorials"} & {*page.parts})]


@pytest.mark.parametrize("page", NAMING, ids=lambda p: p.name)
def test_files_of_the_library_that_pages_name_exist(page):
    assert absent(page.read_text()) == []


def test_a_file_that_has_moved_is_found():
    assert absent("`refsgd/effects.py`, `refsgd/experiment/stepper.py`, `refsgd/transport/`") == [
        "refsgd/experiment/stepper.py", "refsgd/transport/"]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))],
                         ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert not [t for t in targets if not (page.parent / t).exists()]


def wide_lines(text, most=110):
    """Lines of Python and of commands that are wider than those of the package."""
    fences = re.findall(r"^( *)(`{3,})(?:\{code-cell\}.*|python|bash|console)\n(.*?)^\1\2$", text, re.M | re.S)
    return [line for *_, code in fences for line in code.splitlines()
            if len(line) > most and not line.lstrip().startswith(":mystnb:")]


PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "course" not in page.parts]  # with wide slides


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_no_line_of_code_is_cut_off(page):
    assert not wide_lines(page.read_text())


def test_a_line_that_would_be_cut_off_is_found():
    assert wide_lines(f"```python\n{'x' * 111}\n```\n") and not wide_lines(f"```\n{'x' * 111}\n```\n")


def test_the_table_of_defaults_names_the_present_options():
    """A new algorithm comes in when the table is made anew."""
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", (ROOT / "docs" / "defaults.md").read_text(), re.M)
    assert rows
    for name, options in rows:
        own = (CATALOGUE[name].__kwdefaults__ or {}).items()
        assert options == (", ".join(f"{key}={value}" for key, value in own) or "-")


@pytest.mark.slow
def test_what_the_readme_says_that_its_program_prints():
    """To the digit in virtual time and by formula; of the real processes, whose messages come in another
    order each time, that there is such a line."""
    program, printed = re.search(r"## In Python\n\n```python\n(import refsgd.*?)```\n\nprints[^\n]*\n\n```\n(.*?)```",
                                 (ROOT / "README.md").read_text(), re.S).groups()
    assert len(program.strip().splitlines()) == 15
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    found, said = out.getvalue().splitlines(), printed.splitlines()
    assert [line for line in found
            if not line.startswith("processes")] == [line for line in said
                                                     if not line.startswith("processes")]
    assert len(found) == len(said) and re.sub(r"\d+", "N", found[1]) == re.sub(r"\d+", "N", said[1])


def test_the_server_in_the_readme_is_that_of_the_library():
    def server(text):
        (found,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "server")
        found.returns, found.body = None, [n for n in found.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
        for argument in found.args.args:
            argument.annotation = None
        return ast.unparse(found)

    shown = next(block for block in (ROOT / "README.md").read_text().split("```python\n") if block.startswith("def server"))
    assert server(shown.split("```")[0]) == server((ROOT / "refsgd/algorithms/server/ssp_gate.py").read_text())


def test_no_command_of_the_readme_is_cut_where_it_is_shown():
    """A page of a repository shows about 97 columns of code."""
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("refsgd", "pip", "python"))]
    assert len(lines) > 10 and not [line for line in lines if len(line) > 97]


def test_the_readme_has_exactly_the_two_commands():
    commands = re.findall(r"^pip install .*$", (ROOT / "README.md").read_text(), re.M)
    assert commands == ["pip install . && refsgd compare", "pip install '.[test]' && pytest"]


def families_named(text):
    """The families of the algorithms in each row of the README's table, by the row's title, and files that are missing."""
    rows = re.findall(r"^\| ([^|`]+?) \| (.*) \|$", text.split("| | algorithms |")[1].split("\n\n")[0], re.M)
    plain = {title: re.findall(r"`(\w[^`\s]*)`", re.sub(r"\([^()]*\)", "", row)) for title, row in rows}
    missing = [name for names in plain.values() for name in names
               if name.endswith(".py") and not list((ROOT / "refsgd" / "algorithms").rglob(name))]
    return {title: [CATALOGUE[name].__module__.split(".")[2] for name in names]
            for title, names in plain.items() if not names[0].endswith(".py")}, missing


def test_the_readme_groups_algorithms_as_the_library_does():
    """Some of them: a new algorithm needs no place in the table."""
    found, missing = families_named((ROOT / "README.md").read_text())
    assert not missing and len(found) > len(FAMILIES)
    for title, families in found.items():
        said = {family for family in FAMILIES if family.replace("_", " ") in title.removesuffix("s")}
        assert len(set(families)) == 1 and set(families) >= said, title
    assert {family for families in found.values() for family in families} == set(FAMILIES)


def test_an_algorithm_in_another_family_or_unknown_is_noticed():
    table = "| | algorithms |\n|---|---|\n| gossip | `gosgd` `easgd` (`--x y`) |\n| files | `none.py` |\n\n"
    assert families_named(table) == ({"gossip": ["gossip", "averaging"]}, ["none.py"])
    with pytest.raises(KeyError):
        families_named(table.replace("easgd", "unknown"))


NUMBERS = dict(six=6, seven=7, eight=8, nine=9, ten=10, eleven=11, twelve=12, thirteen=13, fourteen=14, fifteen=15, sixteen=16,
               seventeen=17, eighteen=18, nineteen=19, twenty=20, **{"twenty-one": 21, "twenty-two": 22, "twenty-three": 23})
#: what pages count, from ten on or before these words, and how many there are
COUNTED = {r"tutorials|notebooks|sessions of 45|summaries": len(list((ROOT / "tutorials").glob("[0-9]*.md"))),
           r"programs|exhibits": len(list((ROOT / "docs" / "museum" / "programs").glob("*.py"))),
           r"(?:all-reduce )?\[?collectives": len(ALLREDUCE),
           r"slide decks": len(list((ROOT / "docs" / "course" / "decks").glob("*.md"))),
           r"algorithms": None}  # a new one would be counted on many pages


def counts(text, things):
    """How many of these things a page says that there are; a few of them may have another meaning."""
    words = re.findall(rf"\b(\d+|{'|'.join(NUMBERS)}) (?:{things})\b", text, re.I)
    numbers = {NUMBERS.get(word.lower()) or int(word) for word in words}
    return {n for n in numbers if n >= 10 or "slide" in things}


@pytest.mark.parametrize("things", COUNTED)
def test_pages_count_what_there_is(things):
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "course").glob("*.md"),
             *(ROOT / "docs" / "museum").glob("*.md")]
    found = set().union(*(counts(page.read_text(), things) for page in pages))
    assert found == ({COUNTED[things]} - {None})


def test_a_wrong_count_is_noticed():
    assert counts("Twelve programs, 31 programs, two programs, ten [collectives](x)", "programs") == {12, 31}


#: works that have no public address: a report for a course, and a book of 1962 without an ISBN
WITHOUT_ADDRESS = {"pani2020", "takacs1962"}


def test_every_work_of_the_bibliography_has_a_link():
    """An arXiv number, a DOI or an address; the style of the page makes a link of these fields, not of a note."""
    entries = re.findall(r"^@\w+\{(\w+),(.*)\}$", (ROOT / "docs" / "references.bib").read_text(), re.M)
    assert len(entries) > 90
    link = re.compile(r", (?:doi = \{10\.\d{4,}/\S+\}|eprint = \{\d{4}\.\d{4,5}\}|url = \{https://\S+\})")
    assert {key for key, fields in entries if not link.search(fields)} == WITHOUT_ADDRESS


def test_the_page_on_citing_agrees_with_the_package():
    page, cff = (ROOT / "docs" / "cite.md").read_text(), (ROOT / "CITATION.cff").read_text()
    for field in (f"version = {{{refsgd.__version__}}}", "license = {Apache-2.0}"):
        assert field in page
    title = re.search(r'^title: "(.*)"', cff, re.M)[1]
    assert f"version: {refsgd.__version__}\n" in cff and f"title   = {{{title}}}" in page
