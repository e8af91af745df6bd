"""Wrong exchanges in a reader's own file, which `refsgd check FILE:NAME` catches, each beside the right one."""

from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.compression import codec
from refsgd.algorithms.sgd import SGD
from refsgd.cli import main
from refsgd.testing import check, check_codec
from tests.exchange import own_exchanges as own
from tests.wrong import wrong_deployment

FILE = Path(own.__file__)


@pytest.mark.parametrize(("name", "finding", "says"), [
    ("dropped", "residual", "expected every residual to be added once to the next gradient"),
    ("twice", "residual", "expected every residual to be added once to the next gradient"),
    ("unmasked", "momentum mask", "with momentum 0.5 a single 1 was sent as 1, 0.5, 0.25")])
def test_a_wrong_codec_is_caught(name, finding, says, capsys):
    assert main(["check", f"{FILE}:{name}"]) == 1
    (line,) = [line for line in capsys.readouterr().out.replace("\n     ", " ").splitlines() if line.startswith("FAIL")]
    assert line.startswith(f"FAIL {finding}: ") and says in " ".join(line.split())


@pytest.mark.parametrize("name", ["kept", "masked"])
def test_the_right_codec_is_not(name, capsys):
    assert main(["check", f"{FILE}:{name}"]) == 0 and "ok   residual: what" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "finding", "says"), [
    ("compressed", "residual", "expected every residual to be added once"),
    ("buckets", "all schedules", "deadlock"),
    ("places", "residual", "messages to be decoded as they were encoded"),
    ("urgent", "priority", "other parts go first on a slow link, and workers do not wait for this one")])
def test_a_wrong_exchange_is_caught(name, finding, says):
    right, wrong = ({f.name: f for f in check(getattr(own, name), processes=False, max_runs=5, wrong=wrong)}
                    for wrong in (False, True))
    assert [str(f) for f in right.values() if f.held is False] == [] and right[finding].held
    assert wrong[finding].held is False and says in wrong[finding].text


def test_the_deadlock_of_buckets_comes_with_its_schedule(capsys):
    """By the command: each peer is the root of the bucket that it begins with, and waits for the other's part."""
    assert main(["check", f"{FILE}:buckets", "--no-processes", "--wrong"]) == 1
    text = capsys.readouterr().out
    said = text[text.index("FAIL all schedules: "):text.index("note mean")]
    said_in_words = " ".join(said.split())  # lines end where the file's path is long
    assert "deadlock: peer0 waits: peer1 has not sent Part yet: it waits for peer0: a cycle; own_exchanges.py:" in said_in_words
    assert "schedule [" in said and "peer0    | peer1\n" in said


@pytest.mark.slow
def test_servers_that_answer_different_pairs_of_three_workers_deadlock():
    """Two workers, with which every schedule is followed, do not show it."""
    def schedules(**how):
        return next(f for f in check(own.pairs, processes=False, **how) if f.name == "all schedules")

    assert schedules().held
    found = schedules(layout="layers")
    assert found.held is False and "deadlock: " in str(found), found


def test_a_push_whose_version_is_newer_than_its_gradient_is_caught():
    """Of the library's own worker: a message says that it was computed one update later."""
    wrong = wrong_deployment(CATALOGUE["asp"], "Push(g, examples, self.version[s])",
                             "Push(g, examples, self.version[s] + 1)")
    found = {f.name: f for f in check(wrong, processes=False, max_runs=5, compress="topk:0.5")}
    assert found["gradients"].held is False and "staleness -1; expected a version read" in found["gradients"].text


def test_an_exchange_is_checked_as_an_option_and_refused_alike(capsys):
    """With algorithms of the catalogue and with your own."""
    how = {"layout": "layers", "overlap": "both", "priority": True, "compress": "topk:0.5"}
    found = check("bsp", processes=False, max_runs=5, **how)
    assert not [str(f) for f in found if f.held is False]
    assert {"residual", "priority"} <= {f.name for f in found if f.held}
    assert not {"residual", "priority"} & {f.name for f in check("bsp", processes=False, max_runs=5)}
    assert main(["check", "gosgd", "--overlap", "backward"]) == 1
    assert "overlap backward with gosgd: it exchanges parameters" in " ".join(capsys.readouterr().out.split())


def test_a_codec_without_feedback_or_with_momentum_is_not_accused():
    assert [f.held for f in check_codec(codec("topk:0.25", feedback=False))] == [None, True, None]
    for text in ("randk:0.25", "dgc:0.1", "onebit", "twobit:0.5", "twobit:0.1", "qsgd:1", "fp16", "powersgd:1"):
        assert all(f.held is not False for f in check_codec(codec(text))), text
    assert [f.held for f in check_codec(codec("dgc:0.1,masking=off", sgd=SGD(0.1, 0.9)))] == [True, True, None]


@pytest.mark.parametrize("error", [KeyError("rate"), SystemExit(0)])
def test_a_codec_that_raises_an_error_does_not_pass(error, monkeypatch):
    wrong = codec("topk:0.25")
    monkeypatch.setattr(type(wrong.rule), "encode", lambda *given: exec("raise error", {"error": error}))
    assert check_codec(wrong)[0].held is False
