"""Phrases that slow a reader down are in no page and in no message; each is listed with a better one."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "tutorials").glob("*.md"), *(ROOT / "docs").glob("*.md"),
         *(p for folder in ("algorithms", "explanation", "howto", "studies", "course", "museum")
           for p in (ROOT / "docs" / folder).rglob("*.md"))])

#: pattern -> what to write instead; in pages and in the strings of the library
EVERYWHERE = {
    r"in the mean\b(?! of)": "on average",
    r"weighed": "weighted",
    r"for want of": "without, out of",
    r"the present one": "the current one",
    r"(?:came|come|comes) meanwhile": "arrived in the meantime",
    r"(?:system|machine|computer|it) (?:has|have) not(?= ?[.,;:)])": "does not support, does not have",
    r"in vain": "without an answer",
    r"for ever": "forever",
    r"one's own": "your own, its own",
    r"goes on(?! to)": "continues",
    r"whoever": "the worker that",
    r"(?:any|some)body's way": "slow each other down",
    r"left? away": "omit",
    r"not any more": "no longer",
    r"all the same": "nevertheless",
    r"made again": "regenerated",
    r"the house": "the layout, the project",
    r"(?:of|by|for) whom one\b": "which worker",
    r"the lit line": "the highlighted line",
    r"appointment": "coordination",
    r"part ways|where .{0,20}answers part": "differ",
    r"shows? how .{0,20}looks\b": "shows what it looks like",
    r"buys? communication with": "do more computation per byte",
    r"long ago as": "as old as",
    r"to speak of": "noticeable",
    r"as it were": "(delete)",
    r"equally much": "the same amount",
    r"no small matter": "expensive, difficult",
    r"[Hh]old (?:it|them|this) against": "compare with",
    r"slower than I\b": "slower than this worker",
    r"(?:of|for|by|over|with|after|every`?) so many": "this many, the number of",
    r"anew": "again",
    r"slow and dear": "slow and expensive",
    r"(?:counts?|weighs?|pulls?) (?:\w+ )?alike": "have the same weight",
    r"equally many": "the same number of",
    r"(?<!there )is no (?:number|option|finding|bound|ratio|share)": "is not a",
    r"comes? on top(?! of)": "is added",
    r"says? nothing of": "does not mention, does not declare",
    r"from a (?:time|second) on": "from a given time on",
    r"in (?:shape|name) only": "shape-only",
    r"beside (?:workers|each other)": "on the workers' hosts, side by side",
    r"carry weight": "matter",
    r"as can be": "as possible",
    r"message's way|the way of (?:a|the) messages?": "path",
    r"who takes wh(?:at|ich)": "which algorithm takes which option",
    r"just so": "in the same way",
    r"(?:the|an) own": "its own, the worker's own",
    r", of it": ", of which",
    r"one behind the other": "one after another",
    r"gave back": "returned",
    r"at any speeds": "whatever the speeds",
    r"wrong use": "usage error",
    r"stale are only": "only ... are stale",
    r"with a (?:part|piece|copy) each have": "K servers, each with a part, have",
}
#: in pages only
IN_PAGES = {
    r"(?<![-\w])stands?\b(?!-)": "is, is shown, is paused, stops",
    r"anybody|somebody": "a worker, another peer",
    r"(?:^|(?<=[.!] )|(?<=  ))(?-i:Who)(?! \w+s? (?:what|which|whom)) [^?.|]*\.": "A worker that ...: no relative clause as a subject",
    r"beside (?=the measure|the simulation|simulation)": "next to",
    r"without any\b": "without",
    r"the reader\b(?! steps)": "you",
    r"meanwhile (?:wait|come|arrive)": "in that time",
}


def found(text, patterns):
    """(what is there, what to write instead) of each phrase of the list."""
    return [(m[0], better) for pattern, better in patterns.items()
            for m in re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text.replace("\n", " "), re.I)]


def words(path):
    """The strings of a module (docstrings, and the pieces of messages), and its comments."""
    text = path.read_text()
    said = [node.value for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n\n".join(said + [token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
                               if token.type == tokenize.COMMENT])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_have_none_of_the_listed_phrases(page):
    assert found(page.read_text(), EVERYWHERE | IN_PAGES) == []


@pytest.mark.parametrize("folder", ["refsgd", "benchmarks", "docs"])
def test_messages_docstrings_and_comments_have_none_of_the_listed_phrases(folder):
    flaws = {str(path.relative_to(ROOT)): said for path in (ROOT / folder).rglob("*.py")
             if (said := found(words(path), EVERYWHERE))}
    assert flaws == {}


def test_comments_and_strings_of_a_module_are_read(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""Counts alike."""\nx = 1  # weighed\n')
    assert [said for said, _ in found(words(module), EVERYWHERE)] == ["weighed", "Counts alike"]


@pytest.mark.parametrize(("sentence", "phrase"), [
    ("In the mean it is n - 1.", "In the mean"),
    ("Processes need fork, which this system has not.", "system has not"),
    ("Done. Who has made all its iterations waits.", "Who has made all its iterations waits."),
    ("The lines that the programs stand at.", "stand"),
    ("which merges it,\nweighed, at once", "weighed"),
    ("Bytes of the activations of so many images.", "of so many"),
    ("Each push counts alike.", "counts alike"),
    ("The latency comes on top.", "comes on top"),
    ("After an own push.", "an own"),
    ("$K$ servers with a part each have $K$ links.", "with a part each have"),
])
def test_a_listed_phrase_is_found(sentence, phrase):
    assert phrase in [said for said, _ in found(sentence, EVERYWHERE | IN_PAGES)]


@pytest.mark.parametrize("sentence", ["The error in the mean of ten runs.", "Who waits for whom?", "a stand-in", "It has not arrived.",
                                      "understand", "the algorithm goes on to push", "not so many", "on top of the server",
                                      "the owner", "there is no number", "as many as can begin", "two of it"])
def test_plain_sentences_are_left_alone(sentence):
    assert found(sentence, EVERYWHERE | IN_PAGES) == []
