"""The table of what the documents contain is complete, its page is made of it, and what it names exists."""

import shlex
from pathlib import Path

import pytest

from benchmarks.coverage import PAGE, STATES, TITLES, load, page
from benchmarks.studies import NAMES, parts_of
from refsgd.cli import parsed
from refsgd.cli.compare import algorithms_of
from refsgd.cli.options import arguments_of, as_meant, machine_of
from refsgd.experiment.functions import deployment_function
from refsgd.experiment.prepare import prepare
from refsgd.problems.data import NAMES as DATA

ROOT = Path(__file__).parents[2]
SECTIONS = load()
ROWS = {item["id"]: item for items in SECTIONS.values() for item in items}
PARTS = {f"{name} {part.__name__}" for name in NAMES for part in parts_of(name)[1]}
DOCUMENTS = {*NAMES, "summary", "own"}
KEYS = {"id", "item", "document", "state", "where", "reason", "takes"}


def refused(command, capsys):
    """Why a command is not accepted; a run or a prediction is prepared, other commands are parsed."""
    try:
        args = parsed(as_meant(shlex.split(command)[1:]))
        if args.command in ("run", "predict"):
            images = args.data in DATA and args.data != "digits"  # they may not be on this computer
            if not images and not getattr(args, "sweep", None):
                prepare(args.algorithm, **arguments_of(args))
        elif hasattr(args, "slow"):
            machine_of(args)
        if args.command in ("race", "compare"):
            for each in algorithms_of(args.algorithms or "seven")[0]:
                deployment_function(each.split()[0])
        if (source := getattr(args, "source", None)) and not (ROOT / source).exists():
            return f"{source} does not exist"
    except (SystemExit, ValueError) as error:
        return capsys.readouterr().err or str(error)
    return ""


def flaw(where, capsys):
    """What is wrong with a place: a command that is refused, or a part, a page or a test that does not exist."""
    if where.startswith("refsgd "):
        return refused(where, capsys)
    if where in PARTS:
        return ""
    path, _, test = where.partition("::")
    if path.partition("/")[0] not in ("docs", "tutorials", "tests") or not (ROOT / path).is_file():
        return f"{where} does not exist"
    return "" if f"def {test}" in (ROOT / path).read_text() or not test else f"{path} has no {test}"


def incomplete(item):
    """What a row lacks: a place if it works, a reason if not, and what it would take."""
    needed = {"works": {"where"}, "partial": {"where", "reason", "takes"}, "absent": {"reason", "takes"},
              "background": {"reason"}}[item["state"]]
    more = {"works": {"reason", "takes"}, "background": {"where", "takes"}}.get(item["state"], set())
    return [*(KEYS - {"where", "reason", "takes"} | needed) - {key for key, value in item.items() if value},
            *more & {*item}, *{*item} - KEYS]


def test_the_page_is_made_of_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(SECTIONS)


def test_every_item_is_there_once():
    assert sorted(item["id"] for items in SECTIONS.values() for item in items) == list(range(1, 233))
    assert [*SECTIONS] == [*TITLES]
    assert {item["state"] for item in ROWS.values()} == {*STATES}


@pytest.mark.parametrize("item", ROWS.values(), ids=lambda item: str(item["id"]))
def test_a_row_is_complete_and_names_what_exists(item, capsys):
    assert incomplete(item) == []
    assert {part.split()[0] for part in item["document"].split("; ")} <= DOCUMENTS
    assert [found for where in item.get("where", ()) if (found := flaw(where, capsys))] == []


@pytest.mark.parametrize(("where", "says"), [
    ("refsgd run ssp --slack 3", "--slack"), ("refsgd run spp", "did you mean ssp?"),
    ("refsgd run gosgd --servers 2", "servers"), ("refsgd run --preset caffe3", "caffe3"),
    ("refsgd run bsp --machine no-cluster", "no-cluster"), ("refsgd machine no-cluster", "no-cluster"),
    ("refsgd race bps", "bps"), ("refsgd race --from no.json", "does not exist"),
    ("jia2020 figure12", "does not exist"), ("docs/algorithms/none.md", "does not exist"), ("README.md", "does not exist"),
    ("tests/studies/test_jia2020.py::test_nothing", "has no test_nothing")])
def test_a_place_that_does_not_exist_is_found(where, says, capsys):
    assert says in flaw(where, capsys)


@pytest.mark.parametrize(("change", "lacks"), [
    ({"where": []}, ["where"]), ({"state": "absent"}, ["reason", "takes"]), ({"state": "background"}, ["reason", "where"]),
    ({"reason": "slow"}, ["reason"]), ({"item": ""}, ["item"]), ({"was": "absent"}, ["was"])])
def test_a_row_without_its_reason_is_found(change, lacks):
    assert sorted(incomplete(ROWS[1] | change)) == lacks


def test_a_state_that_was_changed_makes_another_page():
    assert page(SECTIONS | {"A": [ROWS[1] | {"state": "background"}, *SECTIONS["A"][1:]]}) != page(SECTIONS)

