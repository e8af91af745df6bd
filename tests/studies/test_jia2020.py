"""The IPCCC 2020 study at its quick sizes: what must hold of its tables and figures, and what cannot."""

import pytest

from benchmarks.studies import Lab, perform

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(quick):
    return quick("jia2020")


def verdicts(study, part):
    return {claim.says: claim.verdict for claim in study.part(part).claims}


def test_profile(study):
    """Updates n to 1, a synchronous push at least ten times as long, an asynchronous pull and update
    longer, pulls at most 1.5 times."""
    found = verdicts(study, "table2")
    assert found.pop("the server issues a pull") == "does not hold"
    assert found.pop("the learning rate adapts to the number of updates") == "not testable"
    for says in ("the processors are in use for 95 to 98 % of the time",  # synchronously 71 %
                 "65 to 98 % of the memory is filled, more by ResNet-18"):
        assert found.pop(says) == "does not hold"
    assert len(found) == 10 and set(found.values()) <= {"holds", "holds in shape"}


def test_an_update_beside_a_computing_worker_takes_as_long_as_the_formula_says(study):
    """Within 3 %: the formula leaves queues out, and updates at which a gradient begins or ends."""
    lines = {line.what: line for line in study.part("table2").lines}
    for net in ("Inception-v1", "ResNet-18"):
        alone, beside = lines[f"sync {net}: one update"], lines[f"async {net}: one update"]
        assert alone.simulated == pytest.approx(alone.formula, rel=1e-9)
        assert beside.simulated == pytest.approx(beside.formula,
                                                 rel=0.03) and beside.simulated > 1.7 * alone.simulated


def test_asynchronous_training_loses_accuracy_with_workers_and_synchronous_does_not(study):
    found = verdicts(study, "figure7")
    # the mean of more gradients is better at equal updates; the wait for the slowest falls with the
    # iterations of a pass; workers that share machines gain nothing if each gradient uses a whole one
    assert {found.pop(says) for says in ("synchronous accuracy falls from 4 to 12 workers (by 0.08)",
                                         "the time of a pass falls when workers are added",
                                         "communicating stays")} == {"does not hold"}
    assert set(found.values()) == {"holds in shape"}


def test_staleness_by_three_definitions(study):
    assert set(verdicts(study, "figure8").values()) <= {"holds", "holds in shape"}


def test_servers_change_times_and_no_sum(study):
    assert verdicts(study, "figure9") == {"the number of servers does not change accuracy": "holds",
                                          "small batches need more servers": "holds in shape",
                                          "time rises with the number of servers on the same machines": "holds in shape",
                                          "async: computing and exchanging both take longer": "holds in shape",
                                          # under a barrier a worker waits while servers update
                                          "sync: computing and exchanging both take longer": "does not hold"}


def test_batches(study):
    found = verdicts(study, "figure10")
    assert found["time falls with the batch, each doubling saving less"] == "holds in shape"
    assert found["a larger batch gives a lower accuracy after three passes"] == "holds in shape"
    # more than half cannot be saved
    assert found["the first doubling saves 51 % and 54 %"] == "does not hold"


@pytest.mark.alone  # idleness of 11 % is 5 ms in 45: a core that others use would delay messages by as much
def test_idleness_and_its_measurement():
    figure = perform("jia2020", Lab(quick=True), ["figure11"])
    assert set(verdicts(figure, "figure11").values()) <= {"holds", "holds in shape"}


def test_one_stage_works_at_a_time(study):
    """Four stages idle three quarters of the time, and messages cost a little more; micro-batches make them worth it."""
    assert set(verdicts(study, "stages").values()) == {"holds in shape"}
    lines = {line.what: line for line in study.part("stages").lines}
    assert 75 < lines["model parallelism, four stages: idle"].simulated < 77
    alone = lines["one machine: images"].formula
    assert 0.95 * alone < lines["model parallelism, four stages: images"].simulated < alone
    assert 2 * alone < lines["a pipeline, four stages, 8 micro-batches: images"].simulated < 4 * alone


def test_nine_workers_on_four_machines_are_slower_than_eight(study):
    """A step takes as long as three gradients on one machine; what is left to messages is under 2 %."""
    assert verdicts(study, "balance") == {
        "workers must be launched in multiples of four, or the load is unbalanced": "holds in shape",
        "and servers, too": "does not hold"}
    lines = [line for line in study.part("balance").lines if line.formula]
    assert len(lines) == 6 and all(line.simulated == pytest.approx(line.formula, rel=0.02) for line in lines)


def test_asynchronous_workers_are_idle_too(study):
    """By the formula and the simulator alike, and less than synchronous ones or as much."""
    assert set(verdicts(study, "idleness").values()) == {"holds in shape"}
    found = {line.what: line for line in study.part("idleness").lines}
    assert all(line.simulated == pytest.approx(line.formula, rel=1e-3) for line in found.values())
    both = [(line.simulated, found[what.replace("async", "sync")].simulated) for what, line in found.items()
            if what.startswith("async")]
    assert len(both) == 9 and all(0 < a <= b + 1e-9 for a, b in both)


def test_resources_are_measured(study):
    part = study.part("resources")
    verdicts = {claim.says: claim.verdict for claim in part.claims}
    verdicts.pop("and use the processors alike, within 3 points")  # other work on this machine decides it too
    assert set(verdicts.values()) == {"holds in shape"}
    assert all(line.processes is not None for line in part.lines)


def test_the_layer_timeline(study):
    assert set(verdicts(study, "figure4").values()) == {"holds"}


def test_the_summary(study):
    assert set(verdicts(study, "summary").values()) <= {"holds", "holds in shape"}
