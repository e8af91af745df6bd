"""The pages of the algorithms: one for each, on one template, and nothing on them that the source does
not bear out."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace.metrics import measure

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import experiments  # noqa: E402
from algorithm_index import table  # noqa: E402
from node_drawing import STEPS, drawn, sketch, watched  # noqa: E402

FOLDER = ROOT / "docs" / "algorithms"
PAGES = {page.stem: page.read_text() for page in sorted(FOLDER.glob("*.md")) if page.stem != "index"}
SECTIONS = ["Idea", "Quick facts", "Pseudo-code", "The source", "Step through it",
            "Closed form and its check", "What goes wrong if", "When something dies",
            "Exercises", "References"]
#: algorithms whose page is not of the catalogue
OTHERS = {"compression"}


def directives(text, name):
    """Argument and body, options left out, of each directive of this name, in order."""
    for _, argument, body in re.findall(rf"^ *(`{{3,}})\{{{name}\}} *([\w.-]*)\n(.*?)^ *\1$", text,
                                        re.M | re.S):
        lines = body.splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        yield argument, "\n".join(line[indent:] for line in lines if not re.match(r" *:[a-z]+:", line)) + "\n"


@pytest.mark.parametrize(("name", "options", "lines", "tips"), [
    ("bsp", {}, 4, 8), ("allreduce", {}, 4, 4), ("eager-diloco", {}, 4, 4), ("gosgd", {"p": 1}, 6, 12), ("gpipe", {}, 3, 6), ("hogwild", {}, 4, 8)])
def test_a_drawing_has_an_arrow_for_each_pair_that_exchanges_messages(name, options, lines, tips):
    svg = drawn(name, "a label", **options)
    assert (svg.count("<line "), svg.count("url(#tip)")) == (lines, tips) and 'aria-label="a label"' in svg
    assert re.findall(r">(\d)</text>", drawn(name, "", short=True, **options)) == list("0123")


@pytest.mark.parametrize(("name", "sent"), [("local-sgd", 3e6), ("async-diloco", 4e6), ("gosgd", None), ("backup-workers", None)])
def test_the_worked_number_counts_the_bytes_of_the_messages_that_are_listed(name, sent):
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install '.[docs]'")
    import algorithm_nodes as page

    experiment, trace = watched(name)
    listed = sum(m.count * m.nbytes for m in page.messages(trace, STEPS))
    assert page.size(listed) in page.number(experiment, trace) and sent in (None, listed)


def test_no_node_of_a_drawing_covers_another_or_sticks_out():
    for svg in (sketch([f"peer{i}" for i in range(n)], {}, "") for n in (1, 2, 3, 4, 8, 12)):
        width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
        boxes = [tuple(map(float, box)) for box in re.findall(r'<rect x="(-?\d+)" y="(-?\d+)" width="(\d+)" height="(\d+)"', svg)]
        assert all(min(x, y) >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
        assert not [1 for i, (x, y, w, h) in enumerate(boxes) for a, b, _, _ in boxes[:i] if abs(x - a) < w and abs(y - b) < h]


CHANGES = [(page, module, body) for page, text in PAGES.items()
           for module, body in directives(text, "algorithm-change")]
CYCLE = "(rank + 1) % workers"  #: in a change that has a test of its own


def test_every_algorithm_has_a_page_that_the_index_lists():
    assert set(PAGES) == set(CATALOGUE) | OTHERS
    text = (FOLDER / "index.md").read_text()
    assert set(re.findall(r"\]\(([\w-]+)\)", table() + text)) == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_sections_of_the_template_in_order(page):
    text = PAGES[page]
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    for directive in ("picture", "facts", "pseudocode", "source", "dialogue", "player", "change"):
        assert f"```{{algorithm-{directive}}}" in text, f"no {directive}"
    exercises = text.split("## Exercises")[1]
    numbered = re.findall(r"^(\d)\. ", exercises, re.M)
    assert numbered == [str(i + 1) for i in range(len(numbered))] and 2 <= len(numbered) <= 4
    assert len(re.findall(r"\{dropdown\} Solution", exercises)) == len(numbered), "a folded solution for each"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_cites_is_in_the_bibliography(page):
    keys = {key for group in re.findall(r"\{cite\}`([^`]+)`", PAGES[page]) for key in group.split(",")}
    known = set(re.findall(r"^@\w+\{([^,]+),", (ROOT / "docs" / "references.bib").read_text(), re.M))
    assert keys and keys <= known


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    code = re.sub(r"^ *(`{3,})\{algorithm-.*?^ *\1$", "", PAGES[page], flags=re.M | re.S)
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)\)", code)
    missing = [t for t in targets if t not in PAGES and not (FOLDER / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_pseudo_code_stands_in_the_source_exactly_once(page):
    (own, body), = directives(PAGES[page], "algorithm-pseudocode")
    placed = [line.partition(" @ ")[2] for line in body.splitlines() if " @ " in line]
    assert len(placed) >= 3
    for place in placed:
        where, _, text = place.partition(": ")
        module, _, function = where.rpartition(".")
        source = experiments.source_of(module or own)
        hits = [i for i in source.within(function) if source.lines[i].strip().startswith(text.strip())]
        assert len(hits) == 1, f"{place}: {len(hits)} lines"


@pytest.mark.parametrize(("page", "module", "body"), CHANGES,
                         ids=[f"{page}-{i}" for i, (page, _, _) in enumerate(CHANGES)])
def test_a_changed_line_is_in_the_source_exactly_once(page, module, body):
    hunks, code = experiments.parse(body)
    # raises where a line is not there exactly once
    text = experiments.apply(experiments.source_of(module), hunks)
    compile(text, module, "exec")
    assert text != "".join(experiments.source_of(module).lines) and code.strip()


@pytest.mark.parametrize(("page", "module", "body"),
                         [c for c in CHANGES if c[0] in ("ssp", "adpsgd", "gpipe", "pipedream") and CYCLE not in c[2]])
def test_a_change_is_noticed_by_its_experiment(page, module, body):
    # raises unless it holds without the change and fails with it
    experiments.compare_with_change(module, body)


def test_the_page_of_adpsgd_shows_how_three_askers_wait_in_a_cycle():
    (body,) = [body for page, _, body in CHANGES if page == "adpsgd" and CYCLE in body]
    source, (hunks, code) = experiments.source_of("adpsgd"), experiments.parse(body)
    with experiments.changed(source, experiments.apply(source, hunks)):
        said = " ".join(experiments.complaint(experiments.perform(code).failure).split())
    assert re.findall(
        r"(peer\d) at \S+ \(changed\):\d+ in train waits for Recv\(Answer or Died from (peer\d)\)", said) == [
        ("peer0", "peer1"), ("peer1", "peer2"), ("peer2", "peer0")]
    assert said.index("choose peer1") < said.index("<- Ask#0 peer2")  # the schedule is drawn
    assert "adpsgd-graphs.svg" in PAGES["adpsgd"]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "module", "body"), CHANGES,
                         ids=[f"{page}-{i}" for i, (page, _, _) in enumerate(CHANGES)])
def test_every_change_is_noticed_by_its_experiment(page, module, body):
    experiments.compare_with_change(module, body)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"),
                         [(page, code) for page, text in PAGES.items()
                          for _, code in directives(text, "algorithm-experiment")])
def test_every_experiment_of_a_page_runs(page, code):
    assert experiments.perform(code).failure is None


# -- the machinery must be able to fail -----------------------------------------------------------------------------

HARMLESS = (
    "@@ server\n- waiting.add(w)\n+ waiting |= {w}\n\nsimulate(ssp.ssp(quadratic(workers=2), 2, 2, "
    "SGD(0.1)))\n")


def test_a_change_that_nothing_notices_is_refused():
    with pytest.raises(ValueError, match=r"does not notice that 'waiting.add\(w\)' has been changed"):
        experiments.compare_with_change("ssp-gate", HARMLESS)


def test_a_line_that_is_not_in_the_source_any_more_is_refused():
    with pytest.raises(ValueError, match="ssp_gate.server: 0 places read 'waiting.append"):
        experiments.compare_with_change("ssp-gate", HARMLESS.replace("add", "append"))


def test_an_experiment_that_fails_without_the_change_is_refused():
    with pytest.raises(ValueError, match="fails without any change"):
        experiments.compare_with_change("ssp-gate", HARMLESS + "assert False\n")


def test_a_change_that_is_mistaken_itself_is_not_taken_for_caught():
    with pytest.raises(NameError, match="nowhere"):
        experiments.compare_with_change("ssp-gate", HARMLESS.replace("waiting |= {w}", "nowhere"))


def test_the_library_is_as_before_after_an_experiment():
    before = sys.modules["refsgd.algorithms.server.ssp_gate"], CATALOGUE["ssp"]
    with pytest.raises(ValueError, match="does not notice"):
        experiments.compare_with_change("ssp-gate", HARMLESS)
    import refsgd.algorithms

    assert (sys.modules["refsgd.algorithms.server.ssp_gate"], refsgd.algorithms.CATALOGUE["ssp"]) == before
    assert refsgd.algorithms is sys.modules["refsgd.algorithms"]


def test_the_page_of_sequential_names_all_that_differ_from_it_with_one_worker():
    """With DiLoCo its relatives; NoLoCo is one."""
    results = {name: refsgd.run(name, data="digits", workers=1, steps=2, evaluations=0).parameters for name in CATALOGUE}
    differ = {name for name, x in results.items() if not np.array_equal(x, results["sequential"])}
    named = set(re.findall(r"\]\(([\w-]+)\)", PAGES["sequential"].split("(Some differ")[1].split("rounding.)")[0]))
    assert differ == named | {name for name in CATALOGUE if "loco" in name}


def test_the_table_of_figures_has_those_of_a_run():
    """Next to the predicted ones, under the same names."""
    pytest.importorskip("sphinx", reason="Sphinx builds the site: pip install '.[docs]'")
    from algorithm_page import FIGURES

    trace = simulate(CATALOGUE["bsp"](quadratic(workers=2), 2, 3, SGD(0.1)), Machine(compute="fixed(2)")).trace
    found = measure(trace)
    assert {*FIGURES} <= {*found} and found["seconds"] == 6 and found["updates"] == 3
