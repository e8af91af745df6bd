"""The museum of wrong code: each exhibit trains as well as its page claims, its shortest counterexample is as
short as the page says, and the corrected program is right."""

import re
import sys
from pathlib import Path

import pytest

from refsgd.runtimes.explorer import Counterexample, explore
from refsgd.testing import check
from refsgd.trace import Computed, Sent
from tests.marks import mostly_long, mostly_slow

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import exhibits  # noqa: E402
import experiments  # noqa: E402

FOLDER = ROOT / "docs" / "museum"
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md")) if page.stem != "index"}


def directive(page, name):
    """Arguments, options and body of the only directive of this name on a page."""
    (arguments, text), = re.findall(rf"^```{{exhibit-{name}}} ([^\n]*)\n(.*?)^```$", PAGES[page], re.M | re.S)
    options = dict(re.findall(r"^:([a-z-]+): *(.*)$", text, re.M))
    return arguments.split(), options, re.sub(r"^:[a-z-]+:.*\n", "", text, flags=re.M)


def case_of(page):
    """Exhibit, options and code of a page's small case."""
    (name,), options, code = directive(page, "counterexample")
    return name, options, code


@pytest.fixture(scope="module", params=PAGES)
def page(request):
    return request.param


def test_the_index_lists_every_exhibit():
    index = (FOLDER / "index.md").read_text()
    assert sorted(re.findall(r"\]\(([\w-]+)\.md\)", index)) == sorted(PAGES)
    listed = index.split(":hidden:")[1].split()[:-1]
    assert [PAGES[page].split(":")[0] for page in listed] == [f"# Exhibit {i + 1}" for i in range(len(PAGES))]
    programs = sorted(path.stem for path in exhibits.PROGRAMS.glob("*.py"))
    assert programs == sorted(case_of(page)[0] for page in PAGES)


def test_a_page_has_the_parts_of_an_exhibit(page):
    text = PAGES[page]
    assert re.findall(r"^## (.*)$", text, re.M) == [
        "What it claims to be", "Why it looks right", "What goes wrong"]
    parts = ["{literalinclude}", "{exhibit-training}", "> **Predict.**", "{exhibit-counterexample}",
             "**The property.** ", "{cite}", "**The correction.**", "{exhibit-correction}",
             "**How to find such a mistake.**"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    name = case_of(page)[0]
    assert f"{{literalinclude}} programs/{name}.py" in text
    assert {directive(page, part)[0][0] for part in ("training", "counterexample", "correction")} == {name}
    assert 15 <= len(exhibits.source_of(name).lines) <= 65


# To find the shortest schedules of these four takes most of a minute.
@pytest.mark.parametrize("page", mostly_slow(PAGES, *sorted({*PAGES} - {"adpsgd", "async-rl", "easgd", "local-sgd"})))
def test_the_counterexample_is_as_short_as_the_page_says(page):
    name, options, code = case_of(page)
    found = exhibits.broken(name, code)
    assert len(found.world.events) == int(options["events"])
    assert found.text.count("\n") == len(found.world.events)  # it is drawn whole


def test_the_explorer_finds_no_shorter_one(page):
    name, options, code = case_of(page)
    deploy, check, _ = exhibits.case(exhibits.program(name), code)
    with pytest.raises(Counterexample) as found:
        explore(deploy, check)
    assert len(found.value.world.events) >= int(options["events"])


def test_the_corrected_program_is_right_in_every_schedule(page):
    name, _, code = case_of(page)
    assert exhibits.holds(name, code, directive(page, "correction")[2]).complete


@pytest.mark.slow
@pytest.mark.parametrize("page", mostly_long(PAGES, *sorted({*PAGES} - {"async-rl"})))
def test_the_corrected_program_holds_after_every_event(page):
    name, _, code = case_of(page)
    right = exhibits.corrected(name, directive(page, "correction")[2])
    assert exhibits.shortest(*exhibits.case(right, code)) is None


@pytest.mark.slow
def test_an_exhibit_trains_as_well_as_its_page_claims_also_when_corrected(page):
    (name, _), options, _ = directive(page, "training")
    for module in (exhibits.program(name), exhibits.corrected(name, directive(page, "correction")[2])):
        reached = exhibits.train(exhibits.algorithm(module), options.get("options", "")).accuracy["test"]
        assert reached >= float(options["accuracy"]) and (float(options["accuracy"]) >= 0.93 or page == "diloco")


@pytest.mark.slow
def test_the_conformance_kit_finds_what_the_index_says_and_passes_each_corrected_program(page):
    (said,) = re.findall(rf"\({page}\.md\) \|.*\| (.*) \|$", (FOLDER / "index.md").read_text(), re.M)
    name, named = directive(page, "training")[0][0], re.search(r"--as ([\w-]+)", said)
    given = {"sampled": 1} if "--sampled 1" in said else {}
    wrong = exhibits.algorithm(exhibits.program(name))
    right = exhibits.algorithm(exhibits.corrected(name, directive(page, "correction")[2]))

    def finds(function, algorithm=None):
        """A failure; exhibits are minimal, and take all batches to be equal."""
        return any(f.held is False and "unequal batches" not in f.text
                   for f in check(function, algorithm=algorithm, processes=False, **given))

    assert finds(wrong) == (not named) and not finds(right)
    assert named or said == "finds it"
    algorithm = named[1] if named else "diloco" if page == "nesterov" else page
    assert finds(wrong, algorithm) and not finds(right, algorithm)


@pytest.mark.parametrize("page", mostly_slow([page for page in PAGES if "{exhibit-figures}" in PAGES[page]], "fedbuff", "nesterov"))
def test_the_figures_of_a_page_can_be_computed(page):
    (name, *_), _, code = directive(page, "figures")
    assert exhibits.figures(name, code).count("\n") >= 3


def test_the_programs_of_published_code_are_those_that_differ():
    """Each names its repository; the other exhibits are nobody's."""
    public = {page for page in PAGES if "**In public.**" in PAGES[page]}
    assert len(public) == 7 and all("**The difference in one line**" in " ".join(PAGES[page].split()) for page in public)
    assert all("{exhibit-figures}" in PAGES[page] and "https://github.com/" in PAGES[page] for page in public)


# -- the machinery must be able to fail ----------------------------------------------------------------------

CASE = """
def deploy():
    return program.bsp(quadratic(workers=2), 2, 1, SGD(0.1))

def check(run):
    pass
"""


def test_an_exhibit_that_nothing_breaks_is_refused():
    with pytest.raises(ValueError, match="bsp: no schedule breaks the check"):
        exhibits.broken("bsp", CASE)
    with pytest.raises(ValueError, match=r"expected deploy\(\) and check\(run\) or always\(run\)"):
        exhibits.broken("bsp", CASE.split("def check")[0])


def test_a_correction_that_corrects_nothing_is_refused():
    name, _, code = case_of("bsp")
    with pytest.raises(Counterexample):
        exhibits.holds(name, code, "@@ server\n- pushes = {}\n+ pushes = dict()\n")


def test_the_search_prefers_few_events():
    """The first event that breaks something is found, not a whole run that contains it."""
    code = CASE.replace("def check(run):\n    pass", "def always(run):\n    assert not run.trace.of(Sent)")
    case = exhibits.case(exhibits.program("bsp"), code)
    found = exhibits.shortest(*case)
    assert [type(e) for e in found.world.events] == [Computed, Sent]


def test_a_program_is_called_by_its_last_function():
    assert exhibits.algorithm(exhibits.program("adpsgd")).__name__ == "adpsgd"
    assert experiments.perform("print(program)", program=3).printed == "3\n"
