"""docs/validation.md is so: a part of its grid computed again, and wrong formulas that the comparison
catches."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import validation
from refsgd.theory import ALGORITHMS
from tests.marks import mostly_slow

PAGE = (Path(validation.DOCS) / "validation.md").read_text()
RATIO = {name: figure for figure, name in validation.NAMES.items()}


def limits():
    """The largest errors that the page states, by figure."""
    lines = re.findall(r"^\| ([a-z ]+) \| ([+-][\d.]+)(%?) \(", PAGE, re.M)
    return {RATIO[name]: abs(float(value)) / (100 if sign else 1) for name, value, sign in lines}


def held(rows):
    """What the page claims of these rows."""
    found = validation.exactness(rows)
    assert found.digits == found.of_digits
    assert found.largest <= found.limit, found.worst
    assert not validation.crossed(rows)
    stated = limits()
    for figure, r in validation.stated(rows).items():
        assert abs(r.relative) <= stated[figure] + 0.0005, r  # the page rounds to that


def test_the_page_is_made_of_the_results():
    """Text and numbers; the largest errors are those of the stored rows."""
    found = validation.load()
    assert validation.page(found) == PAGE
    assert set(limits()) == {r.figure for r in found["grid"] if r.kind == "approximation"}
    assert {r.label for r in found["grid"]} == {case.label for case in validation.cases()}
    held(found["grid"])


@pytest.mark.parametrize("part, names", mostly_slow(
    [(12, ("bsp", "asp")), (6, ("bsp", "asp", "allreduce", "softsync"))], (12, ("bsp", "asp"))))
def test_a_part_of_the_grid(part, names):
    """Fixed times of one in so many configurations, random ones of some algorithms: as stored, and as the
    page says."""
    random = [(name, {}) for name in names]
    cases = [*validation.cases((4,), ("fixed(0.02)",), ((0.002, 0.005),), validation.CONFIGURATIONS[::part]),
             *validation.cases((4,), ("exponential(0.02)",), ((0.002, 0.001),), random)]
    rows = [r for case in cases for r in validation.check(case)]
    held(rows)
    again(rows)


def test_the_paced_processes_are_near_their_simulation():
    """Stored runs: iteration within 10 %, idle within 0.05, staleness within 10 % (of the range over
    orders where messages tie), bytes equal."""
    runs = validation.load()["paced"]
    assert len(runs) == len(validation.PACED) and len({r["algorithm"] for r in runs}) >= 7
    for r in runs:
        seconds, idle, staleness, same = validation.apart_of(r)
        assert abs(seconds) <= 0.1 and abs(idle) <= 0.05 and same, r
        assert aged(r) if validation.ties(r) else abs(staleness) <= 0.1, r
    exchange = next(r for r in runs if r["algorithm"] == "easgd" and validation.ties(r))
    low, high = validation.orders(exchange)
    assert 1.2 * low < high and not aged(
        {**exchange, "processes": {**exchange["processes"], "staleness_mean": high + 0.2}})
    slow = {**runs[0],
            "processes": {**runs[0]["processes"],
                          "seconds_per_iteration": 1.11 * runs[0]["simulator"]["seconds_per_iteration"]}}
    assert abs(validation.apart_of(slow)[0]) > 0.1


def aged(run):
    """Whether the measured staleness lies between those of the ways to order ties, to 10 % (below one
    update: to a tenth)."""
    low, high = validation.orders(run)
    seen, room = run["processes"]["staleness_mean"], 0.1 * max(high, 1.0)
    return low - room <= seen <= high + room


def again(rows):
    """The stored rows, but for the last digits of another machine's arithmetic."""
    stored = {(r.label, r.machine, r.figure): r for r in validation.load()["grid"]}
    for r in rows:
        old = stored[r.label, r.machine, r.figure]
        assert (r.kind, r.runs) == (old.kind, old.runs)
        assert [r.predicted, r.simulated] == pytest.approx([old.predicted, old.simulated], rel=1e-4,
                                                           abs=1e-9), r


@pytest.mark.slow
def test_most_of_the_grid():
    """Four workers with exponential times on busy links; fixed times with two and eight on all links."""
    cases = [*validation.cases((4,), ("exponential(0.02)",), ((0.002, 0.005),)),
             *validation.cases((2, 8), ("fixed(0.02)",))]
    rows = [r for case in cases for r in validation.check(case)]
    assert len(rows) > 900
    held(rows)
    again(rows)


def caught(name, wrong, transfer, monkeypatch, **options):
    """Rows of a case whose formula is replaced."""
    monkeypatch.setitem(ALGORITHMS, name, wrong)
    return validation.exactness(
        validation.check(validation.Case(name, options, 4, "exponential(0.02)", 0.002, transfer)))


def test_the_textbook_is_caught(monkeypatch):
    """2 n transfers, said to be exact: too long with fixed times, beyond the limit with random ones."""
    right = ALGORITHMS["bsp"]

    def textbook(c):
        out = right(c)
        longer = out["seconds_per_iteration"]
        out["seconds_per_iteration"] = replace(longer, value=longer.value + (c.workers - 1) * c.transfer)
        return out

    fixed = validation.Case("bsp", {}, 4, "fixed(0.02)", 0.002, 0.001)
    assert all(r.deviation == 0 for r in validation.check(fixed) if r.kind == "exact")
    monkeypatch.setitem(ALGORITHMS, "bsp", textbook)
    assert any(np.isinf(r.deviation) for r in validation.check(fixed))
    found = caught("bsp", textbook, 0.005, monkeypatch)
    assert found.largest > found.limit


def test_a_slack_of_one_more_is_caught(monkeypatch):
    right = ALGORITHMS["ssp"]
    found = caught("ssp", lambda c: right(c.with_options(staleness=c.options["staleness"] + 1)), 0.001,
                   monkeypatch, staleness=1)
    assert found.largest > found.limit
