"""Gradients that travel in parts while workers compute: by hand, beside the simulator, and wrong variants."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refsgd
from benchmarks import layerwise as grid
from benchmarks import machines
from refsgd.theory import predict
from refsgd.theory.phenomena import gate, ways
from refsgd.theory.phenomena.layerwise import Part, Plan

#: three layers: forward 1, 1, 2 s, backward 2, 2, 4 s; 3, 1, 2 s on a link
MACHINE = refsgd.Machine(compute="fixed(12)", bandwidth=4)
SHARES = (1 / 12, 1 / 12, 2 / 12), (2 / 12, 2 / 12, 4 / 12)
PARTS = Part(0, (0,), 12, 12), Part(0, (1,), 4, 4), Part(0, (2,), 8, 8)


def pace(overlap, priority=False, name="asp", workers=1, machine=MACHINE, parts=PARTS):
    plan = Plan(parts, *SHARES, overlap, priority, even=False)
    found = predict(name, machine, workers=workers, nbytes=24, steps=40, plan=plan)["seconds_per_iteration"]
    assert found.kind == "exact"
    return found.value


def test_one_worker_by_hand():
    """Gradients are ready 8, 10 and 12 s after the start, and leave until 10, 11 and 15 s.  Answers are there
    at 12, 13 and 18 s, that of the first layer last: `both` gains nothing in this order, until that is urgent."""
    assert pace("none") == pytest.approx(12 + 6 + 3)  # the answer to the first part follows its push
    assert pace("backward") == pytest.approx(18)
    assert pace("both") == pytest.approx(18)
    small = Part(0, (0,), 4, 4), Part(0, (1,), 4, 4), Part(0, (2,), 16, 16)
    # pushed until 12, 13 and 14 s, answered until 16, 17 and 18 s; the first layer second, with priority
    assert pace("both", parts=small) == pytest.approx(18)
    assert pace("both", True, parts=small) == pytest.approx(17)


def test_a_first_layer_that_hides():
    """A large first layer stays exposed without `both`; with it the other layers' passes hide its answer."""
    late = Part(0, (0,), 4, 4), Part(0, (1,), 4, 4), Part(0, (2,), 4, 4)
    assert pace("backward", parts=late) == pytest.approx(14) == pytest.approx(pace("both", parts=late))
    large = Part(0, (0,), 4, 4), Part(0, (1,), 4, 4), Part(0, (2,), 28, 28)
    # the last layer's answer comes at 22 s, the first's at 16 s with priority, when passes of 2 s can begin
    assert pace("backward", True, parts=large) > pace("both", True, parts=large)


@given(st.lists(st.integers(0, 30), min_size=3, max_size=3), st.sampled_from(["backward", "both"]), st.booleans(),
       st.sampled_from(["asp", "bsp", "ssp"]), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_between_the_longer_and_the_sum(sizes, overlap, priority, name, workers):
    """max(compute, exchange on the busiest link) <= T <= the time without overlap, for one worker; for several,
    the lower bound."""
    parts = tuple(Part(0, (k,), m, m) for k, m in enumerate(sizes))
    found = predict(name, MACHINE, workers=workers, nbytes=sum(sizes), steps=40,
                    plan=Plan(parts, *SHARES, overlap, priority, even=False))["seconds_per_iteration"]
    assert found.value >= max(12, workers * sum(sizes) / 4) * (1 - 1e-9)
    if workers == 1:
        assert found.value <= (12 + 2 * sum(sizes) / 4) * (1 + 1e-9)


def few(seed):
    """Some random exchanges of a small net."""
    return [point for point in grid.draw(seed, 20, "fixed") if point.net.startswith("tiny") and point.workers < 5]


@pytest.mark.parametrize("seed", range(4))
def test_a_few_random_exchanges(seed):
    """Figures that call themselves exact equal the simulation, whatever the exchange."""
    assert len(machines.held(few(seed))) > 10


@pytest.mark.slow
def test_many_random_exchanges():
    """As above, and drawn times within their own error bars."""
    machines.held(grid.draw(100, 60, "fixed"))
    machines.held(grid.draw(200, 10, "exponential"))


def test_the_stored_exchanges():
    """As above, 240 of them; with drawn times, within error bars."""
    found = grid.load()
    assert len({row.label for row in found}) >= 240
    sure = [row for row in found if row.kind in ("exact", "numerical")]
    assert all(row.equal for row in sure if not row.error)
    assert sum(row.equal or abs(row.predicted - row.simulated) <= 3 * row.error for row in sure) > 0.99 * len(sure)
    assert not [row for row in found if machines.far(row)]


def wrong(monkeypatch, owner, name, variant):
    """A variant that the random exchanges notice."""
    monkeypatch.setattr(owner, name, variant)
    with pytest.raises(AssertionError):
        for seed in range(4):
            for point in few(seed):
                machines.held([point])


def test_a_forward_pass_that_waits_only_for_its_first_layer_would_be_noticed(monkeypatch):
    right = Plan.stages.fget
    wrong(monkeypatch, Plan, "stages", property(lambda plan: [
        (sum(share for share, _ in right(plan)) * (k == 0), parts) for k, (_, parts) in enumerate(right(plan))]))


def test_parts_that_leave_a_layer_early_would_be_noticed(monkeypatch):
    right = Plan.moves
    wrong(monkeypatch, Plan, "moves", lambda plan, order: [
        (share, more, ready) for (share, more, _), (_, _, ready) in zip(
            right(plan, order), [*right(plan, order)[1:], (0, 0, right(plan, order)[0][2])], strict=True)])


def test_links_without_priorities_would_be_noticed(monkeypatch):
    wrong(monkeypatch, gate, "Urgent", ways.Agenda)


def test_pushes_that_are_not_decoded_would_be_noticed():
    """A codec of 1 s per 4 bytes on each end: 3 s to encode the first part, 3 s to decode it."""
    plan = Plan((Part(0, (0, 1, 2), 6, 12),), *SHARES, codec=0.25, even=False)
    found = predict("asp", MACHINE, workers=1, nbytes=12, steps=9, plan=plan)
    assert found["seconds_per_iteration"].value == pytest.approx(12 + 3 + 1.5 + 3 + 3)
