"""docs/studies/races.md is made of its races."""

from dataclasses import replace

import pytest

from benchmarks import fair
from refsgd.experiment.race.entries import Race


def test_the_page_is_made_of_the_results():
    assert fair.PAGE.read_text() == fair.page()


@pytest.mark.parametrize("name", fair.RACES)
def test_each_race_is_the_one_described(name):
    algorithms, more = fair.RACES[name]
    race = Race.load(fair.RESULTS / f"{name}.json")
    assert len(race.rows) == len(algorithms) and len(race.seeds) == 7
    assert race.machine == more.get("machine", race.machine) and race.common_rate == more.get("common_rate")
    assert {row.workers for row in race.rows} == {more.get("workers", 8)}


def test_a_rule_is_compared_with_the_same_algorithm_without_it(monkeypatch):
    """If ASP trained at the common rate as it does at its own, a rate by staleness would gain nothing there."""
    found = fair.rows("staleness")
    found["asp"] = replace(found["asp"], common=found["asp"].heats)
    assert fair.claims()[6][3] == "in part"
    monkeypatch.setattr(fair, "rows", lambda name, known=fair.rows: found if name == "staleness" else known(name))
    assert fair.claims()[6][3] == "no"


def test_a_claim_that_the_races_contradict_is_not_agreed_with(monkeypatch):
    """If replicas needed no more passes with more workers, the first claim would not hold, not even in part."""
    def flat(name):
        found = known(name)
        return {label: replace(row, heats=known("ko-4")[label].heats, per_pass=known("ko-4")[label].per_pass)
                for label, row in found.items()} if name == "ko-16" else found

    known = fair.rows
    assert fair.claims()[0][3] == "in part"
    monkeypatch.setattr(fair, "rows", flat)
    assert fair.claims()[0][3] == "yes"
    assert "1, " in fair.claims()[0][2]
