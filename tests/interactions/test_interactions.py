"""The dialogue on the page of each algorithm is what the programs really do.

`pytest tests/interactions --rewrite` writes the outputs on the pages again; review the difference.
"""

import importlib
import re
import sys
from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE
from tests.docs.test_algorithm_pages import directives
from tests.interactions.player import WIDTH, play

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
import experiments  # noqa: E402

PAGES = {page.stem: page for page in sorted((ROOT / "docs" / "algorithms").glob("*.md")) if page.stem != "index"}
DIALOGUE = re.compile(r"(?<=^```\{algorithm-dialogue\} )([^\n]+)\n(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
#: pages whose dialogue notices a change of their section "What goes wrong if"
NOTICED = (
    "adpsgd", "ako", "allreduce", "approximate", "asp", "backup-workers", "bsp", "consgd", "dc-asgd", "diloco",
    "downpour", "dynsgd", "eager-diloco", "easgd", "gosgd", "gpipe", "independent", "local-sgd", "noloco", "pair-averaging",
    "post-local", "softsync", "ssp", "staleness-aware", "streaming-diloco", "zero")
#: for other pages a module, the line, or a part of it, that makes the algorithm what it is, and a wrong one
DECISIVE = {
    "dpsgd": ("dpsgd", "W[replica.rank, j]", "W[0, 1] * (j == replica.rank)"),
    "dssp": ("dssp", "granted[w] = grant(w, clock, pushed, upper)", "granted[w] = 0"),
    "hogwild": ("hogwild", "parts.append(part)", "parts.append(problem.x0[shared.cut[p]])"),
    "pipedream": ("pipedream", "min(b + depth - k, batches)", "b + 1"),
    "sandblaster": ("vector-shards", "at == evaluation and portion not in pieces", "at == evaluation"),
    "sequential": ("sequential", "problem.gradient, x, 0, t", "problem.gradient, problem.x0, 0, t"),
    "sgp": ("sgp", "share * weight)", "weight)"),
    "strads": ("strads", "yield from schedule(t, ", "yield from schedule(0, "),
}


def dialogue(page):
    """The text of a page's dialogue."""
    (_, body), = DIALOGUE.findall(PAGES[page].read_text())
    assert body.strip(), "an empty dialogue; expected a sentence and commands"
    return body


@pytest.mark.parametrize("page", PAGES)
def test_the_dialogue_of_a_page(page, request):
    body = dialogue(page)
    played = play(body)
    if request.config.getoption("--rewrite"):
        PAGES[page].write_text(PAGES[page].read_text().replace(body, played))
    else:
        assert played == body


@pytest.mark.parametrize("page", PAGES)
def test_a_dialogue_is_short_and_fits_on_the_page(page):
    lines = [line for block in dialogue(page).split("\n\n") if block.startswith("> ") for line in block.splitlines()]
    assert 1 < len(lines) <= 45 and max(map(len, lines)) <= WIDTH
    assert not dialogue(page).startswith("> "), "expected a sentence at its head that says what to look for"


def changes(page):
    """Wrong variants of a module: its source and the whole text of each."""
    if page in DECISIVE:
        module, right, wrong = DECISIVE[page]
        source = experiments.source_of(module)
        assert "".join(source.lines).count(right) == 1
        yield source, "".join(source.lines).replace(right, wrong)
    else:
        for module, body in directives(PAGES[page].read_text(), "algorithm-change"):
            source = experiments.source_of(module)
            yield source, experiments.apply(source, experiments.parse(body)[0])


def replay(page, source, text):
    """The dialogue of a page with a wrong module, or the refusal of a command that is impossible with it."""
    with experiments.changed(source, text):
        wrong = importlib.import_module("refsgd.algorithms").CATALOGUE
        for name, function in wrong.items():
            function.facts = CATALOGUE[name].facts  # those in there are of a class that was imported afresh
        try:
            return play(dialogue(page), wrong)
        except ValueError as error:
            assert str(error).startswith("command "), error
            return str(error)


@pytest.mark.parametrize("page", [*NOTICED, *DECISIVE])
def test_a_dialogue_notices_a_wrong_program(page):
    assert any(replay(page, source, text) != dialogue(page) for source, text in changes(page))


@pytest.mark.parametrize(("page", "codec", "wrong"), [("compression", "topk:0.25", "topk:0.25 feedback=False"),
                                                      ("dgc", "ratio=0.25", "ratio=0.25 masking=False")])
def test_a_dialogue_notices_what_a_codec_forgets(page, codec, wrong):
    assert play(dialogue(page).replace(codec, wrong)).replace(wrong, codec) != dialogue(page)


def test_what_is_not_possible_is_named():
    with pytest.raises(ValueError, match="'Push#1 .*: not possible now; expected one of Push#0 of worker0 arrives"):
        play("Prose.\n\n> deploy asp\n\n> Push#1 of worker0 arrives at server0")
